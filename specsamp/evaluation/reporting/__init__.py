"""Run logs, reports, tables and plots."""
