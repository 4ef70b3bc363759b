"""A server that `tally run` is forked from, with torch and this package loaded: `tally serve`.

identity       which commands it may stand in for: those that would start exactly as it did
loaded_files   the files that it was loaded from, and whether they are the same
client         a command that hands itself to the server, or goes on by itself
server         the process that waits, forks and ends
forked         what makes a fork the command that was asked for
"""
