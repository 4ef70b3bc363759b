"""The best way to run a script: settings and chips, searched by runs.

knobs.py      what is varied: an argument, a variable of the environment, a fix
points.py     what a run showed, what a training by it takes, and which are worth a choice
search.py     which settings to run next, and which cannot win
running.py    the runs, in warm workers, and the figures of each
"""
