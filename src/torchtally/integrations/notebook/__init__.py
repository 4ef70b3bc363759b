"""Notebooks: cells run on a simulated GPU, commands of `tally`, and interactive pages.

`%load_ext torchtally` adds the magics of `magics`; what objects show by themselves is made in
`report`, for every notebook alike.
"""
