"""Intermediates of an optimizer that works on lists of all parameters at once (foreach)."""

from collections.abc import Iterator

from torchtally.diagnosis.holding import crowded_tick, entry_at, heaviest_line, held_with_makers
from torchtally.diagnosis.rule import LEAST_SHARE, Diagnosis, rule
from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.trace import Phase
from torchtally.units import Unit


@rule("optimizer_copies")
def optimizer_copies(ledger: Ledger) -> Iterator[Diagnosis]:
    """Where the peak lies in an optimizer's step, beside results of `_foreach_*` operators."""
    tick, peak_bytes = crowded_tick(ledger), ledger.memory.peak_bytes
    now = entry_at(ledger, tick)
    if now is None or now.op.phase is not Phase.OPTIMIZER:
        return
    copies = [
        (storage, entry)
        for storage, category, entry in held_with_makers(ledger, tick)
        if category is Category.TEMPORARIES
        and entry is not None
        and entry.call.name.startswith("aten._foreach")
    ]
    copied_bytes = sum(storage.bytes for storage, _ in copies)
    if copied_bytes < LEAST_SHARE * peak_bytes:
        return
    yield Diagnosis(
        "optimizer_copies",
        ("The peak is the optimizer's: its foreach form holds ",
         Number(copied_bytes, Unit.BYTES), " of intermediates, for all parameters at once."),
        "fused=True holds none of them, foreach=False those of one parameter.",
        heaviest_line(copies),
        copied_bytes,
        copied_bytes / peak_bytes,
    )  # fmt: skip
