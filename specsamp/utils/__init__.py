"""Files, progress bars, start-up of several processes, user-defined modules."""
