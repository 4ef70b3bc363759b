"""Files: written whole or not at all, read within a bound; folders of the user's cache."""
