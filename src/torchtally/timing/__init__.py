"""Seconds: of a call, of a step, of a transfer.

roofline/     a call on a chip: the slowest of arithmetic, memory, network and overhead
network/      a collective between chips: NCCL's own tuning model
calibration/  what was measured on a device, and how it corrects the roofline
schedule      when each operator of a trace runs
targets       chips and this machine's CPU by name, with their calibrations
prediction    seconds between two moments of a run
"""
