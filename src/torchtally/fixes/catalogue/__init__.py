"""Fixes: a new one is a new file, whose rewrite is decorated with `fix`."""
