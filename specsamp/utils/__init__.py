"""Files, locks, progress bars, start-up of processes, user-defined modules."""
