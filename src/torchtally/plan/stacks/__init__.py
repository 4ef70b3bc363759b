"""Training software: what a plan assumes of each, and how each fact is known."""
