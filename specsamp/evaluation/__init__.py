"""Tasks, methods side by side, losslessness of texts, and reports."""
