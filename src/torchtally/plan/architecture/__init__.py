"""Which model: its layers and weights, by hand, by its authors' file, or by its name."""
