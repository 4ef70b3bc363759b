"""Run a cell of a notebook on a simulated GPU, among the names of the notebook."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchtally.runs.function import EndedRun, run_to_end
from torchtally.runs.notebook_state import NotebookState, is_virtual
from torchtally.runs.request import RunRequest
from torchtally.trace import Role
from torchtally.tracer import tracebacks
from torchtally.tracer.session import Predictor, Recording
from torchtally.virtual.left_behind import LeftBehind, leave_behind, living_storages
from torchtally.virtual.session import check_inactive
from torchtally.virtual.storage import VirtualStorage, virtual_of


def run_cell(
    code: CodeType,
    namespace: dict[str, Any],
    request: RunRequest,
    *,
    prediction: Predictor,
    on_start: Callable[[Recording], None],
    on_step: Callable[[int], None],
) -> EndedRun:
    """The trace of a cell, however it ended.

    Its names are the notebook's, and what it makes is there afterwards. What existed before is as
    it was: a model that the cell moved to the GPU is on the host again, with its weights. The GPU
    is empty at first; what the cell uses of earlier cells is put there when it is used.

    What the cell raises is in what is returned, without our own frames.
    """
    check_inactive()
    before = NotebookState.of(namespace)
    with ExitStack() as stack:
        stack.callback(before.restore)
        leave = stack.enter_context(earlier_cells())

        def begin(recording: Recording) -> None:
            leave(recording)
            on_start(recording)

        done = run_to_end(
            lambda: exec(code, namespace),
            request,
            prediction=prediction,
            on_start=begin,
            on_step=on_step,
        )
    if done.error is not None:
        tracebacks.strip(done.error)
    return done


def storage_roles() -> dict[int, Role]:
    """What the living tensors are for, by the id of their storage: no recorder has seen all of them
    made.
    """
    roles: dict[int, Role] = {}

    def note(tensor: object, role: Role) -> None:
        if is_virtual(tensor):
            roles.setdefault(id(virtual_of(tensor)), role)  # type: ignore[arg-type]

    for each in gc.get_objects():
        if issubclass(type(each), nn.Parameter):
            note(each, Role.PARAMETER)
            note(each.grad, Role.GRADIENT)
        elif issubclass(type(each), Optimizer):
            for state in vars(each).get("state", {}).values():
                for value in state.values():
                    note(value, Role.OPTIMIZER_STATE)
    return roles


@contextmanager
def earlier_cells() -> Iterator[Callable[[Recording], None]]:
    """Context in which what earlier cells have left is there for the run whose recording is
    given.
    """
    storages, roles = living_storages(), storage_roles()

    def begin(recording: Recording) -> None:
        leave_behind(recording.gpu, storages)
        storages.clear()  # a cell may free them

        def mark_used(storage: VirtualStorage) -> None:
            if role := roles.get(id(storage)):
                recording.recorder.tensors.mark_storage(storage, role)

        LeftBehind.used = staticmethod(mark_used)

    native = LeftBehind.used
    try:
        yield begin
    finally:
        LeftBehind.used = staticmethod(native)
