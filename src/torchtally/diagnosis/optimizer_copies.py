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

    def is_copy(held: HeldStorage) -> bool:
        is_temporary = held.category is Category.TEMPORARIES and held.maker is not None
        return is_temporary and held.maker.call.name.startswith("aten._foreach")  # type: ignore[union-attr]

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
