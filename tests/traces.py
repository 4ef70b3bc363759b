"""Reading traces in tests: which operators ran, where, and what they cost."""

from collections.abc import Callable
from typing import NamedTuple

import torchtally
from torchtally.ledger import Ledger
from torchtally.trace import Call, Phase, Site, Trace


def traced(function: Callable[[], object], gpu: str = "H100-SXM", **options: object) -> Trace:
    """What a function does on a simulated chip."""
    return torchtally.run(function, gpu=gpu, **options)  # type: ignore[arg-type]


def accounted(function: Callable[[], object], gpu: str = "H100-SXM", **options: object) -> Ledger:
    """The ledger of a function; its laws hold, or the test fails here."""
    ledger = torchtally.account(traced(function, gpu, **options))
    ledger.check()
    return ledger


class FullOp(NamedTuple):
    """An op with the call and the site that it names by number."""

    clock: int
    call: Call
    site: Site
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def ops(trace: Trace, name: str | None = None, phase: Phase | None = None) -> list[FullOp]:
    """The operators of a name and a phase, in order."""
    full = (
        FullOp(
            op.clock, trace.calls[op.call], trace.sites[op.site], op.phase, op.inputs, op.outputs
        )
        for op in trace.ops
    )
    return [
        op
        for op in full
        if (name is None or op.call.name == name) and (phase is None or op.phase is phase)
    ]


def names(trace: Trace, phase: Phase | None = None) -> list[str]:
    """Names of all operators that ran, in order."""
    return [op.call.name for op in ops(trace, phase=phase)]


def sources(operators: list[FullOp]) -> list[str]:
    """The source lines operators belong to."""
    return [op.site.line.text if op.site.line else "" for op in operators]
