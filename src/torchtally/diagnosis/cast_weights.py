"""Copies of weights in half precision that autocast keeps until its region ends."""

from collections.abc import Iterator

from torchtally.diagnosis.holding import crowded_tick, entry_at, heaviest_line, held_with_makers
from torchtally.diagnosis.rule import LEAST_SHARE, Diagnosis, rule
from torchtally.ledger import Ledger
from torchtally.table import Number
from torchtally.trace import Phase, Role
from torchtally.units import Unit

COPIES = ("aten._to_copy", "aten.to")
FEWEST = 2
"""Casts: one that is in use is no cache."""


@rule("cast_weights")
def cast_weights(ledger: Ledger) -> Iterator[Diagnosis]:
    """Those at a peak outside of training: there no backward pass needs them."""
    tick, peak_bytes = crowded_tick(ledger), ledger.memory.peak_bytes
    now = entry_at(ledger, tick)
    trains = any(entry.op.phase is Phase.BACKWARD for entry in ledger.entries)
    if now is None or (trains and now.op.phase is not Phase.EVALUATION):
        return
    parameters = {
        storage.number for storage in ledger.trace.storages if storage.role is Role.PARAMETER
    }
    casts = [
        (storage, entry)
        for storage, _, entry in held_with_makers(ledger, tick)
        if entry is not None and entry.call.name in COPIES and {*entry.op.inputs} & parameters
    ]
    cast_bytes = sum(storage.bytes for storage, _ in casts)
    if len(casts) < FEWEST or cast_bytes < LEAST_SHARE * peak_bytes:
        return
    yield Diagnosis(
        "cast_weights",
        ("Autocast keeps ", Number(cast_bytes, Unit.BYTES), " of weights cast to half precision"
         " until its region ends, though nothing is trained in it."),
        "Convert the model once (.to(torch.bfloat16)), freeze it (requires_grad_(False)), or set"
        " cache_enabled=False.",
        heaviest_line(casts),
        cast_bytes,
        cast_bytes / peak_bytes,
    )  # fmt: skip
