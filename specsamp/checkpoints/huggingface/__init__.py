"""Folders in the formats of Hugging Face's libraries, read and written."""
