"""Deep Python stacks: read whole once, and as they are whenever an operator runs below them."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.traces import names, traced
from torchtally.trace import Phase
from torchtally.tracer.source import FAR, NEAR, Stacks

DEPTH = 300


class Counting(dict[int, Any]):
    """What kinds of code are known, and how often that was asked: once for each frame read."""

    asked = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


def here() -> FrameType:
    return sys._getframe(1)


def whole(frame: FrameType | None) -> list[tuple[str, int]]:
    """Function and line of each frame of this file, innermost first."""
    lines = []
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            lines.append((frame.f_code.co_qualname, frame.f_lineno))
        frame = frame.f_back
    return lines


def read(stacks: Stacks, frame: FrameType) -> list[tuple[str, int]]:
    known = stacks.frames(stacks.read(frame)[0])
    return [(each.function, each.line) for each in known if each.file == __file__]


def deep(depth: int, function: Callable[[], Any]) -> Any:
    if depth == 0:
        return function()
    if depth % 3 == 0:  # from two lines
        return deep(depth - 1, function)
    return deep(depth - 1, function)


def test_a_second_operator_reads_the_nearest_frames_alone() -> None:
    stacks = Stacks()
    stacks._kinds = kinds = Counting(stacks._kinds)

    def twice() -> list[int]:
        counts = []
        for _ in range(2):
            kinds.asked = 0
            stacks.read(here())
            counts.append(kinds.asked)
        return counts

    first, second = deep(DEPTH, twice)
    assert first > DEPTH
    assert second <= NEAR + FAR


def test_frames_are_those_of_the_stack_as_it_is() -> None:
    """Deeper, less deep, from other lines, and below calls that have returned meanwhile."""
    stacks = Stacks()

    def check() -> None:
        frame = here()
        assert read(stacks, frame) == whole(frame)

    def up_and_down(depth: int) -> None:
        check()
        if depth:
            up_and_down(depth - 1)
            check()
            deep(depth % 7 * NEAR, check)
            check()

    deep(2 * FAR, lambda: up_and_down(3 * NEAR))
    deep(2 * FAR + 1, lambda: up_and_down(NEAR))
    check()


def test_a_generator_goes_on_below_another_caller() -> None:
    stacks = Stacks()

    def check() -> None:
        frame = here()
        assert read(stacks, frame) == whole(frame)

    def generator() -> Iterator[None]:
        while True:
            for depth in range(2 * NEAR):
                deep(depth, check)
            yield

    running = generator()
    next(running)
    deep(NEAR, lambda: next(running))
    deep(3 * FAR, lambda: next(running))


def test_what_a_frame_holds_is_freed_when_it_returns() -> None:
    class Tensor:
        pass

    stacks, held = Stacks(), []

    def holder() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        deep(2 * NEAR, lambda: stacks.read(here()))

    gc.disable()
    try:
        deep(DEPTH, holder)
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_debugger_that_begins_below_traces_nothing_above() -> None:
    stacks = Stacks()
    events: list[str] = []

    def trace(frame: FrameType, event: str, arg: object) -> None:
        events.append(event)

    def stop() -> None:
        stacks.read(here())
        sys.settrace(trace)

    before = sys.gettrace()
    try:
        deep(DEPTH, stop)
    finally:
        sys.settrace(before)
    assert "exception" not in events


def test_a_hook_far_below_the_engine_is_backward() -> None:
    def script() -> None:
        x = torch.ones(4, device="cuda", requires_grad=True)
        y = x.exp()
        y.register_hook(lambda gradient: deep(DEPTH, lambda: gradient.cos()))
        y.sum().backward()

    assert "aten.cos" in names(traced(script), Phase.BACKWARD)


def test_a_backward_pass_within_a_modules_forward_recomputes() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = checkpoint(lambda z: z.sinh().exp(), x, use_reentrant=False)
            assert isinstance(y, torch.Tensor)
            y.sum().backward()
            return y

    def script() -> None:
        Inner()(torch.ones(4, device="cuda", requires_grad=True))

    trace = traced(script)
    assert names(trace, Phase.FORWARD).count("aten.sinh") == 1
    assert names(trace, Phase.RECOMPUTE).count("aten.sinh") == 1
