"""Names that people give to a family of chips, and the variant that each is taken for.

A family's name is an answer to "which chip?" only where it is said which variant was taken:
`tally run --gpu H100` prints "H100: taken as H100-SXM (80 GB); others: H100-PCIe, ...".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.chips.chip import Chip

DEFAULT = "default"
"""The family of the chip that is taken where one is needed and none is named."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A chip that was taken for the name of its family."""

    chip: Chip
    others: tuple[str, ...]
    """Names of the other chips of that family."""


def plain_name(name: str) -> str:
    """The name without case, spaces, dashes and underscores. Vendor words stay.

    "NVIDIA H200" is what a driver calls one chip, "H200" is what people call a family.
    """
    return re.sub(r"[\s_-]", "", name).lower()


def families(chip: Chip) -> frozenset[str]:
    """The families that are taken for a chip, without what does not matter in their names."""
    return frozenset(map(plain_name, chip.families))


def variant(name: str, chips: Sequence[Chip]) -> Variant | None:
    """The chip of these that a family's name is taken for; None for any other name.

    A chip that has the family's name for its own takes it, as one of the user's may.
    """
    bare_name = plain_name(name)
    chosen = next((chip for chip in chips if bare_name in families(chip)), None)
    if chosen is None or any(plain_name(chip.name) == bare_name for chip in chips):
        return None
    members = (chip.name for chip in chips if plain_name(chip.name).startswith(bare_name))
    return Variant(chosen, tuple(member for member in members if member != chosen.name))
