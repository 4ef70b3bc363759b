"""Regimes: the sizes and the chips within which a run is the same program."""

from math import gcd

from torchtally.chips import Chip
from torchtally.programs.labels import HEAD_DIM, HEAD_DIMS, UNITS
from torchtally.programs.sizes import Symbols

WINDOW, SEQUENCE = "window", "sequence"


def regime(sizes: Symbols) -> str:
    """The regime of these sizes, as text: all in it run the operators of one program.

    It says what `labels.recordings_for` keeps to: sizes of one, powers of two up to a tile, the
    attention kernel of the head dim, and whether a window is shorter than the sequence.
    """
    words = [
        f"{symbol} {1 if size == 1 else f'{gcd(size, UNITS.get(symbol, 1))}n'}"
        for symbol, size in sorted(sizes.items())
    ]
    if HEAD_DIM in sizes:
        words.append(f"head_dim to {next(most for most in HEAD_DIMS if sizes[HEAD_DIM] <= most)}")
    if sizes.get(WINDOW, sizes[SEQUENCE]) < sizes[SEQUENCE]:
        words.append("windows")
    return ", ".join(words)


def kernels_of(chip: Chip) -> str:
    """Chips that run the same operators: those of one compute capability."""
    return f"sm {chip.capability_name}" if chip.is_cuda else chip.name
