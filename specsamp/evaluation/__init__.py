"""Tasks, comparisons of methods, tests of losslessness, and reports."""
