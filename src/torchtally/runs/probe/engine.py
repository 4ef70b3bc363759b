"""What a backward pass goes through, and whether the autograd engine calls Python in it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private

OURS = str(Path(__file__).parents[2])
TORCH = str(Path(torch.__file__).parent)
DISPATCHING = tuple(f"{TORCH}/{name}" for name in ("_ops.py", "_library", "_compile.py"))
"""Where torch's own way from an operator to a dispatch mode is written."""


def is_closed(outputs: list[Tensor], sequence: range) -> bool:
    """The results' graph consists of nodes of C++ that the call created, and of leaves."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        number = private.sequence_number(node)
        if number == private.ACCUMULATE_GRAD_SEQUENCE or number in seen:
            continue
        seen.add(number)
        if number not in sequence or private.is_python_node(node):
            return False
        waiting += [function for function, _ in node.next_functions if function is not None]
    return bool(seen)


def entries_into(roots: Sequence[Tensor], sequence: range) -> list[tuple[Any, int]] | None:
    """Edges by which a backward pass enters a call's nodes: (node, number of its input).

    None where it also goes to nodes that are older than the call, or to leaves past it: the engine
    takes the youngest node first, and leaves at once (`CompareNodeTaskTime` in
    torch/csrc/autograd/engine.cpp), so those would not all run before the call's.
    """
    waiting = [(root.grad_fn, root.output_nr) for root in roots]
    entries: list[tuple[Any, int]] = []
    seen: set[int] = set()
    is_entered_last = True
    while waiting:
        node, number = waiting.pop()
        if node is None:
            continue
        place = private.sequence_number(node)
        if place in sequence:
            if not any(place == private.sequence_number(n) and number == k for n, k in entries):
                entries.append((node, number))
        elif place < sequence.start or place == private.ACCUMULATE_GRAD_SEQUENCE:
            is_entered_last = False
        elif place not in seen:
            seen.add(place)
            waiting += node.next_functions
    return entries if is_entered_last or not entries else None


@contextmanager
def python_called_by_engine() -> Iterator[set[CodeType]]:
    """Codes of Python functions, other than the dispatch's, that the engine calls within."""
    engine = private.engine_code()
    codes: set[CodeType] = set()
    is_running = False

    def notice(frame: FrameType, event: str, argument: object) -> None:
        nonlocal is_running
        if frame.f_code is engine:
            if getattr(argument, "__name__", "") == private.ENGINE_METHOD:
                is_running = event == "c_call"
        elif is_running and event == "call":
            caller, code = frame.f_back, frame.f_code
            is_called = caller is not None and caller.f_code is engine
            if is_called and not code.co_filename.startswith((OURS, *DISPATCHING)):
                codes.add(code)

    sys.setprofile(notice)
    try:
        yield codes
    finally:
        sys.setprofile(None)
