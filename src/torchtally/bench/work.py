"""One operator to be measured, and the fact it becomes."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from msgspec import structs

from torchtally.bench.stopwatch import Stopwatch
from torchtally.timing.calibration import Sample
from torchtally.torch_private import OpOverload
from torchtally.trace import Call, TensorSpec
from torchtally.virtual.arguments import settings_of
from torchtally.virtual.description import describe
from torchtally.virtual.invocation import Invocation, tensors_in
from torchtally.virtual.operators import learn
from torchtally.work import cost_of


@dataclass(frozen=True, slots=True)
class OpCall:
    """An operator with its arguments, on the device they are on."""

    overload: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.overload(*self.args, **self.kwargs)

    def call(self) -> Call:
        """What the recorder would write of it."""
        invocation = Invocation(learn(self.overload), self.args, self.kwargs)
        if invocation.operator.product is not None and invocation.inputs[0].is_cuda:
            invocation.settings = settings_of(invocation)
        outputs = tensors_in(self())
        call = describe(invocation, outputs)
        is_mixed = any(tensor.is_cuda for tensor in (*invocation.inputs, *outputs))
        return structs.replace(
            call,
            inputs=place(call.inputs, invocation.inputs, is_mixed=is_mixed),
            outputs=place(call.outputs, outputs, is_mixed=is_mixed),
        )


def place(
    specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor], *, is_mixed: bool
) -> tuple[TensorSpec, ...]:
    """Specs on the accounted device, which `described` takes none of these for.

    Where a GPU is measured, what is on the host stays there; a measured CPU is the device itself.
    """
    return tuple(
        structs.replace(spec, is_pinned=tensor.is_pinned())
        if is_mixed and not tensor.is_cuda
        else structs.replace(spec, device="cuda:0")
        for spec, tensor in zip(specs, tensors, strict=True)
    )


def work(overload: OpOverload, *args: Any, **kwargs: Any) -> OpCall:
    return OpCall(overload, args, kwargs)


Plan = Callable[[], OpCall]
"""Makes the tensors only when its turn comes."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """One operator at several sizes."""

    sizes: tuple[Plan, ...]
    smallest: Plan | None = None
    """So small that it takes nothing but being called, which is a host's matter; None where even
    the smallest has work to do."""


def climb(
    ladders: Iterable[Ladder],
    stopwatch: Stopwatch,
    called_s: float,
    cold_bytes: int,
    measured: Container[Call] = (),
) -> Iterator[Sample]:
    """Every size of every operator, less what calling that operator takes; but `measured` ones."""
    for ladder in ladders:
        own_s = called_s
        if ladder.smallest is not None and not stopwatch.is_gpu:
            with torch.no_grad():
                own_s = stopwatch.seconds(ladder.smallest())
        yield from measure_calls(ladder.sizes, stopwatch, own_s, cold_bytes, measured)


def measure_calls(
    plans: Iterable[Plan],
    stopwatch: Stopwatch,
    called_s: float,
    cold_bytes: int = 0,
    measured: Container[Call] = (),
) -> Iterator[Sample]:
    """Run each, and say how long it takes beyond the `called_s` of calling anything at all.

    With `cold_bytes`, runs take turns on copies of the tensors that make up so much together: what
    the caches hold when an operator runs in a training step is what ran just before it.
    """
    for plan in plans:
        pieces = [plan()]
        with torch.no_grad():
            call = pieces[0].call()
            if call in measured:
                continue
            own_bytes = max(1, cost_of(call)[1].bytes)
            copies = min(MOST_COPIES, cold_bytes // own_bytes)
            pieces += [plan() for _ in range(copies)]
            seconds = stopwatch.seconds(in_turn(pieces))
        del pieces
        yield Sample(call, max(seconds - called_s, SHORTEST_S))


MOST_COPIES = 24


def in_turn(pieces: list[OpCall]) -> Callable[[], Any]:
    """Each in its turn, results kept until its next one: their memory takes turns, too."""
    turns = cycle(enumerate(pieces))
    kept: list[Any] = [None] * len(pieces)

    def run() -> None:
        number, piece = next(turns)
        kept[number] = piece()

    return run


SHORTEST_S = 2e-8
"""What is shorter drowns in the cost of calling."""
