"""Changes of a script's source that make it fit, or faster, each shown by a run of the result.

catalogue/   one change in a file each, found by itself
fix.py       what a change is, and what it knows of the run
patch.py     changed sources, their diff, and the folder they run in
trial.py     a run of a script in that folder, and its figures
choosing.py  which changes to keep: alone, then together
"""
