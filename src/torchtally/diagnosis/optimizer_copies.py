"""Intermediates of an optimizer that works on lists of all parameters at once (foreach)."""

from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import HeldStorage, MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.trace import Phase
from torchtally.units import Unit


@rule("optimizer_copies")
def optimizer_copies(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find results of `_foreach_*` operators at a peak that lies in an optimizer's step."""
    if peak.phase is not Phase.OPTIMIZER:
        return

    refusal = peak.ledger.trace.final_refusal

    def is_copy(held: HeldStorage) -> bool:
        if held.category is not Category.TEMPORARIES:
            return False
        if held.maker is None:  # among its results is the one that there was no memory for
            return refusal is not None and held.storage.born == refusal.tick
        return held.maker.call.name.startswith("aten._foreach")

    yield from peak.diagnose(
        "optimizer_copies",
        is_copy,
        lambda copied_bytes: (
            "The peak is the optimizer's: its foreach form holds ",
            Number(copied_bytes, Unit.BYTES),
            " of intermediates, for all parameters at once.",
        ),
        "fused=True holds none of them, foreach=False those of one parameter.",
    )
