"""What lies within what on one thread of the host, by time.

Profilers record when a call began and how long it took. Calls of one thread are nested, so one pass
over them in order of their beginning, with a stack, says which one an event lies in.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtally.profiles.profile import NOWHERE, Stack

ROUNDING_US = 0.002
"""Beginnings and durations are rounded apart, to a nanosecond: an inner call may end this much
behind the outer one."""
WHOLE_US = 1.0
"""The same of profilers before 2023, which rounded to microseconds."""


BLOCK = 1 << 16
"""Events that are Python objects at one time."""


class HostEvent:
    """Kinds of what happens on a thread."""

    PYTHON = 0
    ANNOTATION = 1
    OPERATOR = 2
    CALL = 3
    """Of CUDA's runtime or driver."""
    INSTANT = 4


class Nested(NamedTuple):
    """Position of an event within the thread."""

    event: int
    """Its number in the thread's columns."""
    operator: int
    """Numbers of the innermost events around it; NOWHERE for none."""
    annotation: int
    stack: int
    """In `PythonStacks`."""


class PythonStacks:
    """The distinct Python stacks."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def number(self, parent: int, name: int) -> int:
        return self._numbers.setdefault((parent, name), len(self._numbers))

    def table(self, names: Sequence[str]) -> tuple[Stack, ...]:
        return tuple(Stack(parent, names[name]) for parent, name in self._numbers)


def nest(
    kinds: NDArray[np.int8],
    starts_us: NDArray[np.float64],
    ends_us: NDArray[np.float64],
    names: NDArray[np.int64],
    stacks: PythonStacks,
) -> Iterator[Nested]:
    """Each event of a thread by its beginning, with what it lies in.

    Known limit: an event that ends behind the one around it, by more than rounding, is taken to
    follow it.
    """
    # The outer one of two that begin together is the longer one; of equals, what calls comes first.
    order = np.lexsort((kinds, starts_us - ends_us, starts_us))
    is_whole = bool(np.all(starts_us == np.round(starts_us)))
    slack_us = WHOLE_US if is_whole else ROUNDING_US
    open_operators: list[tuple[float, int]] = []
    open_annotations: list[tuple[float, int]] = []
    open_python: list[tuple[float, int]] = []
    opened = {
        HostEvent.PYTHON: open_python,
        HostEvent.ANNOTATION: open_annotations,
        HostEvent.OPERATOR: open_operators,
    }
    all_open = (open_operators, open_annotations, open_python)
    for block in np.array_split(order, len(order) // BLOCK + 1):
        columns = (kinds[block], starts_us[block], ends_us[block], names[block])
        rows = zip(block.tolist(), *(column.tolist() for column in columns), strict=True)
        for event, kind, start_us, end_us, name in rows:
            for stack in all_open:
                while stack and (stack[-1][0] <= start_us or stack[-1][0] + slack_us < end_us):
                    if (
                        stack[-1][0] == start_us
                        and end_us == start_us
                        and kind == HostEvent.INSTANT
                    ):
                        break
                    stack.pop()
            operator = open_operators[-1][1] if open_operators else NOWHERE
            annotation = open_annotations[-1][1] if open_annotations else NOWHERE
            python = open_python[-1][1] if open_python else NOWHERE
            if kind == HostEvent.PYTHON:
                open_python.append((end_us, stacks.number(python, name)))
                continue
            yield Nested(event, operator, annotation, python)
            if kind in opened:
                opened[kind].append((end_us, event))
