"""Simulated runs of a script for its memory alone, several at a time."""

from collections import deque
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from torchtally.runs.children import Children, EndedChild, sigterm_raises
from torchtally.runs.protocol import ProbeRequest, ProbeResult

PRELOAD = ("torchtally.runs.probe.main", "torch.fx.experimental.symbolic_shapes")
"""The latter, with sympy, is what torch's shape functions import when they are first called: 0.9 s.
"""


class Probes:
    """A context in which probes run. On leaving it, all of them are ended."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._children = Children("fit", preload=PRELOAD)
        self._ended = deque[EndedChild]()

    def __enter__(self) -> "Probes":
        self._stack.enter_context(sigterm_raises())
        self._stack.enter_context(self._children)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def running(self) -> tuple[Any, ...]:
        """Keys of probes whose results `next_result` has not returned."""
        return (*(child.key for child in self._ended), *self._children.running)

    def start(self, key: Any, request: ProbeRequest) -> None:
        self._children.start(key, request)

    def next_result(self, wait_s: float) -> tuple[Any, ProbeResult] | None:
        """A probe that has ended, by its key; None when none does within `wait_s`."""
        if not self._ended:
            self._ended += self._children.collect_ended(wait_s)
        if not self._ended:
            return None
        child = self._ended.popleft()
        return child.key, _result(child)


def _result(child: EndedChild) -> ProbeResult:
    answer = child.answer(ProbeResult)
    if answer is None:
        how = "was killed by" if child.code < 0 else "ended with"
        answer = ProbeResult(ending="killed", message=f"its process {how} {child.how}")
    return replace(answer, output=child.output, wall_s=child.wall_s)
