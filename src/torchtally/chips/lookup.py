"""Finding a chip by the name that a user, a driver or torch gives it."""

import os
from collections.abc import Sequence
from textwrap import indent

from torchtally.chips.chip import Chip
from torchtally.chips.families import Variant, variant
from torchtally.chips.names import essence, essences, near_matches
from torchtally.chips.table import TABLE, load_chips
from torchtally.errors import UnknownChipError

USERS_TABLE = "TALLY_CHIPS"
"""The environment variable that names a file with chips of the user's own."""
OWN_CHIP = """\
[[chip]]
name = "Mine-1"
vendor = "Me"
architecture = "One"
memory_bytes = 64_000_000_000
memory_bandwidth_bytes_per_s = 1e12
source = "https://example.com/mine"
[chip.peaks]              # dense, in FLOP/s, by torch dtype; tf32 too
bfloat16 = 100e12"""
"""All that such a file needs. The head of `chips.toml` says what else can be given."""


def known_chips() -> tuple[Chip, ...]:
    """Every chip: first the user's own, then those of the table that none of them replaces.

    Raises UsageError, naming file, chip and key, for a mistake in the user's file.
    """
    path = os.environ.get(USERS_TABLE)
    if not path:
        return load_chips(TABLE)
    mine = load_chips(path)
    replaced = {essence(chip.name) for chip in mine}
    return (*mine, *(chip for chip in load_chips(TABLE) if essence(chip.name) not in replaced))


def chip(name: str, among: Sequence[Chip] | None = None) -> Chip:
    """Chip as of `find_chip`; the name of a family ("H100") is its commonest variant
    (`family_variant`).

    Raises UnknownChipError with the near matches.
    """
    chips = known_chips() if among is None else among
    named = find_chip(name, chips)
    if named is None and (chosen := variant(name, chips)) is not None:
        named = chosen.chip
    if named is None:
        raise UnknownChipError(_unknown(name, chips))
    return named


def family_variant(name: str) -> Variant | None:
    """The chip that `chip` takes for a family's name; None where the name is a chip's own."""
    return variant(name, known_chips())


def find_chip(name: str, among: Sequence[Chip] | None = None) -> Chip | None:
    """The chip of this name, alias or driver name; case, spaces, "-" and "_" do not matter.

    The whole name must agree: "NVIDIA GeForce RTX 4090 Laptop GPU" is not an RTX 4090, a MIG slice
    is not an H100, and "A100" alone could be any of four (`chip` takes the commonest). Of `among`,
    earlier ones win.
    None for a name that no chip has.
    """
    chips = known_chips() if among is None else among
    bare_name = essence(name)
    return next((candidate for candidate in chips if bare_name in essences(candidate)), None)


def _unknown(name: str, chips: Sequence[Chip]) -> str:
    near = near_matches(name, chips)
    guess = f" Did you mean {_either(near)}?" if near else ""
    return (
        f"No chip is called {name!r}.{guess} `tally gpus` lists them all.\n"
        f"Seven values make a chip of your own, in a file that {USERS_TABLE} names:\n\n"
        f"{indent(OWN_CHIP, '  ')}"
    )


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
