"""Copies of weights in half precision that autocast keeps until its region ends."""

from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import HeldStorage, MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.table import Number
from torchtally.trace import Phase, Role
from torchtally.units import Unit

COPIES = ("aten._to_copy", "aten.to")


@rule("cast_weights")
def cast_weights(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find casts held at a peak outside of training, where no backward pass needs them."""
    ledger = peak.ledger
    trains = any(entry.op.phase is Phase.BACKWARD for entry in ledger.entries)
    if trains and peak.phase is not Phase.EVALUATION:
        return
    parameters = {
        storage.number for storage in ledger.trace.storages if storage.role is Role.PARAMETER
    }

    def is_cast(held: HeldStorage) -> bool:
        maker = held.maker
        is_copy = maker is not None and maker.call.name in COPIES
        return is_copy and maker is not None and not parameters.isdisjoint(maker.op.inputs)

    if sum(map(is_cast, peak.held)) < 2:
        return  # the one that is in use
    yield from peak.diagnose(
        "cast_weights",
        is_cast,
        lambda cast_bytes: (
            "Autocast keeps ",
            Number(cast_bytes, Unit.BYTES),
            " of weights cast to half precision until its region ends, though nothing is trained"
            " in it.",
        ),
        "Convert the model once (.to(torch.bfloat16)), freeze it (requires_grad_(False)), or set"
        " cache_enabled=False.",
    )
