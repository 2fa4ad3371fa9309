"""Jobs of the launchers, and their configs."""
