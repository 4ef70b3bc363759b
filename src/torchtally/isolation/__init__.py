"""What a simulated run does outside of its GPU, kept from doing harm.

overlay     the user's files as the script sees them: what exists, under what the run has written
files       Python's functions on files, led through the overlay
kernel      denies writes that bypass it, whoever makes them (Landlock), and keeper, who may
guard       refuses those that Python announces (audit), and callers, who they are
denials     the report's list of what the kernel has denied
writers     compiled libraries that open files by themselves, given the overlay's paths
temporary   where a run's temporary files are
network     what of the network a run may use
publishing  which requests would publish placeholders, and programs, which programs would
passages    the functions that it passes through, and the gate there
sending     the layers that clients send by, and what the script gets in a server's place
uploads     trackers, hubs and buckets: answers with which a script goes on
clock       the clock a script reads: predicted time
session     all of that put in place
run         one run, isolated or not
"""
