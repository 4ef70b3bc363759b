"""The full-screen viewer of a trace, `tally view`. Pages are drawn as far as they are seen.

It computes nothing of its own: every number is a cell of a table of `views`, and every name from a
trace goes through `printable` to the screen as plain segments, never as markup. It is the only
folder that imports textual.
"""
