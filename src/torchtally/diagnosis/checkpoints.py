"""One checkpoint around the whole model: backward makes all activations again at once."""

from collections.abc import Iterator

from torchtally.diagnosis.holding import crowded_tick, heaviest_line, held_with_makers
from torchtally.diagnosis.rule import Diagnosis, rule
from torchtally.ledger import Entry, Ledger
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.trace import Phase, Storage
from torchtally.units import Unit

MOST_OF = 0.5
"""Of what tensors hold at the peak: what one recomputation does."""


@rule("checkpoints")
def checkpoints(ledger: Ledger) -> Iterator[Diagnosis]:
    """Where what one recomputation made is half of what tensors hold at the peak."""
    tick, peak_bytes = crowded_tick(ledger), ledger.memory.peak_bytes
    # A recomputation is an unbroken row of operators: before it and behind it, gradients.
    region_of: dict[int, int] = {}
    region = 0
    for entry in ledger.entries:
        if entry.op.phase is Phase.RECOMPUTE:
            region_of[entry.op.clock] = region
        elif entry.op.phase is Phase.BACKWARD:
            region += 1
    if not region_of:
        return
    sizes: dict[int, int] = {}
    kept: list[tuple[Storage, Entry | None]] = []
    tensor_bytes = 0
    for storage, category, maker in held_with_makers(ledger, tick):
        tensor_bytes += 0 if category is Category.WORKSPACES else storage.bytes
        if storage.born in region_of:
            number = region_of[storage.born]
            sizes[number] = sizes.get(number, 0) + storage.bytes
            kept.append((storage, maker))
    largest = max(sizes.values(), default=0)
    if largest < MOST_OF * tensor_bytes:
        return
    yield Diagnosis(
        "checkpoints",
        ("One checkpoint spans so much that its recomputation holds ",
         Number(largest, Unit.BYTES), " at the peak, as a run without it would."),
        "Checkpoint each block by itself.",
        heaviest_line(kept),
        largest,
        largest / peak_bytes,
    )  # fmt: skip
