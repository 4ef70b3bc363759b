"""A script or a function run once: in this process, or in a supervised child process.

function       in this process, on a virtual GPU: its trace
probe/         a child that reports the memory a script needs
measure/       a child that measures a script on a device
"""
