"""Jobs of a sweep that a process runs in turn: a run that stops in one leaves out the rest."""

from types import FrameType

LAUNCHER = "/hydra/_internal/core_plugins/basic_launcher.py"
"""Of `--multirun`: its `launch` has the jobs, and the number of the one that runs."""


def jobs_left_out(frame: FrameType | None) -> str:
    """A sentence on the jobs that a stop at this frame leaves out; "" where it leaves out none."""
    while frame is not None and not is_launcher(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    jobs = len(frame.f_locals["job_overrides"])
    job = frame.f_locals["idx"] - frame.f_locals["initial_job_idx"] + 1
    if job == jobs:
        return ""
    return (
        f"Hydra was to run {jobs} jobs, and this run ended in job {job}: --steps all runs all of "
        "them, and a command without --multirun one by itself."
    )


def is_launcher(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "launch" and code.co_filename.replace("\\", "/").endswith(LAUNCHER)
