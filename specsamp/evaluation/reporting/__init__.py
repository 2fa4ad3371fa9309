"""Tables and plots of what was measured, as text, CSV and pictures."""
