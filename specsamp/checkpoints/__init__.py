"""Folders of models and drafters: specsamp's and those of Hugging Face."""
