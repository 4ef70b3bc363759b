"""A server of the Model Context Protocol: tools that run `tally` for a program, within a folder."""
