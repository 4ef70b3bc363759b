"""Files that other tools open."""
