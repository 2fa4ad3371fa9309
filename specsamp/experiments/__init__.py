"""What a launcher runs, and what its config holds."""
