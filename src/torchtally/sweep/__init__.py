"""Sweeps: many trainings of one config with varied values, their processes and their results.

space       the values to try: grids, random draws, and the points that they span
definition  a sweep as plain data: config, points, names of runs; differences of two sweeps
folder      its folder: definition, lock, one result per run
devices     how many runs at a time, and which devices each one sees
on_ray      processes of runs, started by Ray's tasks on any machine of a cluster
conduct     starts runs, records their ends, stops on a signal
median      which runs are worse than most, and need not go on
stopping    when that is looked at, and Ray Tune's scheduler instead
results     the result of a run, from its exit and its log; ranking
rows        results as a table and as plain data
chart       losses as a chart
make        runs what is missing
parquet     results and all logged steps in columns
progress    the progress display
"""
