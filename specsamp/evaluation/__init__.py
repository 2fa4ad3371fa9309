"""Methods side by side: measured, counted, reported, drawn."""
