"""Models in llama.cpp's format: one file with weights and a tokenizer."""
