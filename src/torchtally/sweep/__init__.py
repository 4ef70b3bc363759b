"""Many trainings of one config with other values: which ones, their processes, what came of them.

keys        the fields of a config by their dotted names: their values from text, their flags
space       what is tried of each: grids, random draws, and the points that they span
definition  the sweep as plain data: config, points, names of runs; how two of them differ
folder      where it is kept: definition, lock, one result a run
devices     how many runs at a time, and what of this machine each one sees
processes   runs as processes of this machine, none of which outlives us
on_ray      the same processes, started by Ray's tasks on any machine of a cluster
conduct     starts what waits, notes what ends, stops on a signal
results     what came of a run, from how it ended and its log; which is best
rows        results as a table for people, and as plain data
plot        losses drawn in letters
parquet     results and all logged steps in columns
progress    what is said while it goes on
"""
