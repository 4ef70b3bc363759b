"""What runs us: cells of a notebook, tests of pytest."""
