"""Models and drafters as folders: ours, and those of Hugging Face."""
