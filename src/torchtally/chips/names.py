"""Names of chips, as people, drivers and other libraries spell them."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

from torchtally.chips.chip import Chip

VENDOR_WORDS = tuple("nvidia tesla geforce amd instinct google aws intel apple huawei".split())
"""Driver versions differ on these: "Tesla T4", "GeForce RTX 3090", "NVIDIA GeForce RTX 3090"."""


def essence(name: str) -> str:
    """The name without case, spaces, dashes, underscores and leading vendor words."""
    bare = re.sub(r"[\s_-]", "", name).lower()
    while word := next((w for w in VENDOR_WORDS if bare.startswith(w) and bare != w), ""):
        bare = bare.removeprefix(word)
    return bare


@cache
def essences(chip: Chip) -> frozenset[str]:
    """All that the chip answers to, each without what does not matter in it."""
    return frozenset(map(essence, (chip.name, *chip.aliases, *chip.driver_names)))


def near_matches(name: str, chips: Sequence[Chip], limit: int = 5) -> tuple[str, ...]:
    """Names of chips that begin with this name, or else share all of it, or else resemble it."""
    bare_name = essence(name)
    if not bare_name:
        return ()
    owner = {bare: chip.name for chip in chips for bare in sorted(essences(chip))}
    begins = [bare for bare in owner if bare.startswith(bare_name)]
    contains = [bare for bare in owner if bare_name in bare or bare in bare_name]
    contains.sort(key=len, reverse=True)
    alike = get_close_matches(bare_name, owner, n=limit, cutoff=0.6)
    nearest = begins or contains or alike
    return tuple(dict.fromkeys(owner[bare] for bare in nearest))[:limit]
