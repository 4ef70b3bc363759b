"""The interactive page: one file that a browser opens without a network.

document    all that the page shows, as plain data in columns
places      its names, lines, modules and files
page        the file: a policy that forbids everything else, the style, the scripts, the data
static/     the style and the scripts, and uPlot, which draws the chart of memory

The data are text of the same file that is never read as markup or run, and the scripts put names
on the page as text alone: no name of a stranger's becomes an element.
"""
