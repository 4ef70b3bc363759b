"""A mask of attention that is expanded to every head and query."""

from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.ledger import Entry
from torchtally.table import Number
from torchtally.units import Unit

ATTENTION = "aten._scaled_dot_product"
MASKS = ("attn_bias", "attn_mask")


@rule("masks")
def masks(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find masks of four dimensions that were booleans, and what they were converted from."""
    attentions = [entry for entry in peak.ledger.entries if entry.call.name.startswith(ATTENTION)]
    if not attentions:
        return
    makers = {
        number: entry
        for entry in peak.ledger.entries
        for number in entry.op.outputs
        if number not in entry.op.inputs
    }
    held = {number for entry in attentions for number in mask_of(entry, makers)}
    yield from peak.diagnose(
        "masks",
        lambda each: each.storage.number in held,
        lambda mask_bytes: (
            Number(mask_bytes, Unit.BYTES),
            " at the peak are masks of attention, one value for every head, query and key.",
        ),
        "A mask of shape (batch, 1, 1, keys) broadcasts; is_causal=True, packed sequences or"
        " flex_attention need none.",
    )


def mask_of(attention: Entry, makers: dict[int, Entry]) -> list[int]:
    """Numbers of the storages of a call's mask and of those it was converted from, each of as many
    elements; none of a bias that was no mask of booleans: it has other values for every query.
    """
    numbers: list[int] = []
    is_boolean = False
    for spec, first in zip(attention.call.inputs, attention.op.inputs, strict=True):
        if spec.argument not in MASKS or len(spec.shape) < 4:
            continue
        number, is_boolean = first, spec.dtype == "bool"
        while number >= 0 and number not in numbers:
            numbers.append(number)
            maker = makers.get(number)
            if maker is None:
                break
            sources = {
                given.dtype: source
                for given, source in zip(maker.call.inputs, maker.op.inputs, strict=True)
                if given.elements == spec.elements and source != number
            }
            is_boolean |= "bool" in sources
            number = sources.get("bool", next(iter(sources.values()), -1))
    return numbers if is_boolean else []
