"""Reading traces in tests: which operators ran, where, and what they cost."""

from collections.abc import Callable

import torchtally
from torchtally.ledger import Ledger
from torchtally.trace import Op, Phase, Trace


def traced(function: Callable[[], object], gpu: str = "H100-SXM", **options: object) -> Trace:
    """What a function does on a simulated chip."""
    return torchtally.run(function, gpu=gpu, **options)  # type: ignore[arg-type]


def accounted(function: Callable[[], object], gpu: str = "H100-SXM", **options: object) -> Ledger:
    """The ledger of a function; its laws hold, or the test fails here."""
    ledger = torchtally.account(traced(function, gpu, **options))
    ledger.check()
    return ledger


def ops(trace: Trace, name: str | None = None, phase: Phase | None = None) -> list[Op]:
    """The operators of a name and a phase, in order."""
    return [
        op
        for op in trace.ops
        if (name is None or op.call.name == name) and (phase is None or op.phase is phase)
    ]


def names(trace: Trace, phase: Phase | None = None) -> list[str]:
    """Names of all operators that ran, in order."""
    return [op.call.name for op in ops(trace, phase=phase)]


def sources(found: list[Op]) -> list[str]:
    """The source lines operators belong to."""
    return [op.site.line.text if op.site.line else "" for op in found]
