"""Run a cell of a notebook on a simulated GPU, among the names of the notebook."""

import gc
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchtally.isolation import Writes
from torchtally.runs.function import EndedRun, run_to_end
from torchtally.runs.notebook_state import NotebookState, is_virtual
from torchtally.trace import Role
from torchtally.tracer import tracebacks
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.session import Recording
from torchtally.tracer.steps import StepLimit
from torchtally.virtual.adopted import adopt_storages


def run_cell(
    code: CodeType,
    namespace: dict[str, Any],
    *,
    name: str,
    gpu: str,
    limit: StepLimit,
    rank: int = 0,
    memory_is_limited: bool = True,
    writes: Writes = "isolated",
    host_clock: bool = False,
    on_start: Callable[[Recording], None],
    on_step: Callable[[int], None],
) -> EndedRun:
    """The trace of a cell, however it ended.

    Its names are the notebook's, and what it makes is there afterwards. What existed before is as
    it was: a model that the cell moved to the GPU is on the host again, with its weights. What
    earlier cells have left on the GPU is there, and takes its memory.

    Raises UnknownChipError for an unknown GPU. What the cell raises is in what is returned, without
    our own frames.
    """

    def begin(recording: Recording) -> None:
        adopt_storages(recording.gpu)
        mark_adopted(recording.recorder)
        on_start(recording)

    before = NotebookState.of(namespace)
    try:
        done = run_to_end(
            lambda: exec(code, namespace),
            gpu=gpu,
            name=name,
            limit=limit,
            rank=rank,
            memory_is_limited=memory_is_limited,
            writes=writes,
            host_clock=host_clock,
            on_start=begin,
            on_step=on_step,
        )
    finally:
        before.restore()
    if done.error is not None:
        tracebacks.strip(done.error)
    return done


def mark_adopted(recorder: Recorder) -> None:
    """Tell the recorder what tensors of earlier cells are for, which it has not seen made."""
    living = gc.get_objects()
    for each in living:
        if issubclass(type(each), nn.Parameter) and is_virtual(each):
            recorder.mark(each, Role.PARAMETER)
            if each.grad is not None:
                recorder.mark(each.grad, Role.GRADIENT)
        elif issubclass(type(each), Optimizer):
            for state in vars(each).get("state", {}).values():
                for value in filter(is_virtual, state.values()):
                    recorder.mark(value, Role.OPTIMIZER_STATE)
