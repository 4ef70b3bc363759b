"""A mask of attention that is expanded to every head and query."""

from collections.abc import Iterator

from torchtally.diagnosis.holding import crowded_tick, heaviest_line, held_with_makers
from torchtally.diagnosis.rule import LEAST_SHARE, Diagnosis, rule
from torchtally.ledger import Entry, Ledger
from torchtally.table import Number
from torchtally.units import Unit

ATTENTION = "aten._scaled_dot_product"
MASKS = ("attn_bias", "attn_mask")


@rule("masks")
def masks(ledger: Ledger) -> Iterator[Diagnosis]:
    """Masks of four dimensions, and what they were made of, where they are much of the peak."""
    makers = {number: entry for entry in ledger.entries for number in entry.op.outputs}
    held: set[int] = set()
    for entry in ledger.entries:
        if entry.call.name.startswith(ATTENTION):
            held.update(_with_sources(entry, makers))
    if not held:
        return
    tick, peak_bytes = crowded_tick(ledger), ledger.memory.peak_bytes
    kept = [
        (storage, entry)
        for storage, _, entry in held_with_makers(ledger, tick)
        if storage.number in held
    ]
    mask_bytes = sum(storage.bytes for storage, _ in kept)
    if mask_bytes < LEAST_SHARE * peak_bytes:
        return
    yield Diagnosis(
        "masks",
        (Number(mask_bytes, Unit.BYTES), " at the peak are masks of attention, one value for"
         " every head, query and key."),
        "A mask of shape (batch, 1, 1, keys) broadcasts; is_causal=True, packed sequences or"
        " flex_attention need none.",
        heaviest_line(kept),
        mask_bytes,
        mask_bytes / peak_bytes,
    )  # fmt: skip


def _with_sources(attention: Entry, makers: dict[int, Entry]) -> Iterator[int]:
    """The storage of the call's mask, and those of the masks it was converted from."""
    for spec, number in zip(attention.call.inputs, attention.op.inputs, strict=True):
        if spec.argument not in MASKS or len(spec.shape) < 4:
            continue
        elements = spec.elements
        while number >= 0:
            yield number
            maker = makers.get(number)
            sources = [] if maker is None else [
                source
                for given, source in zip(maker.call.inputs, maker.op.inputs, strict=True)
                if given.elements == elements and source >= 0 and source != number
            ]  # fmt: skip
            number = sources[0] if sources else -1
