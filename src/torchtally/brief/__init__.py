"""Brief answers about a run, and what changed since the last run of the same script."""
