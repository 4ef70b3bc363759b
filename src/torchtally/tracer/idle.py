"""Runs whose script ended well while its training did not happen."""

from torchtally.tracer.session import Recording
from torchtally.virtual.processes import failures

IDLE_EXIT = 1
"""The exit code of such a run: 0 would say that the training was seen."""


def complaint(recording: Recording) -> str:
    """What the script did in place of a training, and what now; "" if the GPU was in use.

    A script that never asks for a GPU is none of ours: it may well do its work on the host.
    """
    recorder, processes = recording.recorder, recording.gpu.processes
    if recorder.step_ends:
        return ""
    children = list(failures(processes.workers))
    if not recorder.clock:
        children += failures(processes.programs)
    if children:
        ends = ", ".join(f"{name} with exit code {code}" for name, code in children)
        return (
            f"no training step was seen, and child processes failed: {ends}.\n"
            "Only this process has the simulated GPU: children of a script have none. Run the "
            "training itself by `tally run`, in one process."
        )
    if recording.gpu.mode.is_counted and not recorder.clock:
        count = len(recording.gpu.mode.gpus)
        return (
            f"the script asked how many GPUs there are ({count} simulated) and ran nothing on "
            f"{'it' if count == 1 else 'them'}.\n"
            "If it needs more, have it train on one: tally simulates one GPU for now."
        )
    return ""
