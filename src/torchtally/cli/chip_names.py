"""Names of chips as options give them: the default where there is none, and families of chips.

`TALLY_GPU` names the chip for every command that needs one and was given none (run, fit,
train --plan). Where no --gpu means something else (show: the chip traced; audit: the one that is
there; plan: no chip) it stays that.
"""

import os
from collections.abc import Iterable

from torchtally.cli import streams
from torchtally.units import format_label_bytes

GPU_VARIABLE = "TALLY_GPU"


def variable_gpu() -> str | None:
    """The chip that TALLY_GPU names; None where it is unset or empty."""
    return os.environ.get(GPU_VARIABLE, "").strip() or None


def gpu_or_default(name: str | None, *, is_quiet: bool = False) -> str:
    """The name given, else that of TALLY_GPU, else the default chip's, saying which was taken."""
    from torchtally.chips import DEFAULT, chip

    if name is not None:
        say_variants([name], is_quiet=is_quiet)
        return name
    if (named := variable_gpu()) is not None:
        say(f"no --gpu: {named}, by {GPU_VARIABLE}", is_quiet=is_quiet)
        say_variants([named], is_quiet=is_quiet)
        return named
    default = chip(DEFAULT)
    memory = format_label_bytes(default.label_bytes)
    say(
        f"no --gpu: {default.name} ({memory}); another by --gpu NAME or {GPU_VARIABLE}=NAME",
        is_quiet=is_quiet,
    )
    return default.name


def say_variants(names: Iterable[str], *, is_quiet: bool = False) -> None:
    """A line for each family's name among these: which chip is meant, and what else it could be.

    Names may have counts in front, as in "8xH100".
    """
    from torchtally.chips import family_variant
    from torchtally.chips.clusters import chip_name

    for name in dict.fromkeys(map(chip_name, names)):
        chosen = family_variant(name)
        if chosen is not None:
            memory = format_label_bytes(chosen.chip.label_bytes)
            others = f"; others: {', '.join(chosen.others)}" if chosen.others else ""
            say(f"{name}: taken as {chosen.chip.name} ({memory}){others}", is_quiet=is_quiet)


def say(text: str, *, is_quiet: bool) -> None:
    if not is_quiet:
        streams.say(f"tally: {text}")
