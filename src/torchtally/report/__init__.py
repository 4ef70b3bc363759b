"""Finished views in, text out: no arithmetic, no torch. A new format is one new file."""
