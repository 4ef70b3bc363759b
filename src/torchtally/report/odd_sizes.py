"""What sizes that begin rows off 16 bytes cost, in sentences."""

from collections.abc import Iterator, Sequence

from torchtally.units import format_fraction, format_seconds
from torchtally.views.lines import short_path
from torchtally.views.odd_sizes import OddSize

MOST_SIZES = 3


def odd_size_sentences(sizes: Sequence[OddSize], step_s: float, root: str) -> Iterator[str]:
    """One for each, with the next size and what it would save; places are shown from `root`."""
    for odd in sizes[:MOST_SIZES]:
        line = odd.line
        place = "" if line is None else f" ({short_path(line.file, root)}:{line.line})"
        yield (
            f"Rows of {odd.size} elements{place} are not aligned to 16 bytes, which slows tensor "
            f"cores: {odd.next_size} would save {format_seconds(odd.saved_s)}, "
            f"{format_fraction(odd.saved_s / step_s)} of the step."
        )
