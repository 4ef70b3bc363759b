"""Dots of braille: a grid of four rows and two columns in each character."""

from collections.abc import Iterable

Place = tuple[int, int]
"""(row, column), from the top and from the left."""

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell's dots, row by row."""


def braille(dots: Iterable[Place]) -> dict[Place, str]:
    """The characters that show these dots, by their places in a grid of characters."""
    bits: dict[Place, int] = {}
    for y, x in dots:
        place = (y // 4, x // 2)
        bits[place] = bits.get(place, 0) | DOTS[y % 4][x % 2]
    return {place: chr(BRAILLE + bit) for place, bit in bits.items()}
