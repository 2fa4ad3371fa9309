"""Plans for TPU pods and GPUs: memory, predicted times and best drafts."""
