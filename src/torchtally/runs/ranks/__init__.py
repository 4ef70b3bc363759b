"""Several ranks of one script at once, each a process with a trace of its own.

mailbox      what ranks tell each other: values, which ranks are wanted, which have ended
supervisor   a process that starts the ranks that are wanted, and ends with the first one
"""
