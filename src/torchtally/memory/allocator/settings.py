"""What `PYTORCH_CUDA_ALLOC_CONF` says: the allocator's options, spelled and checked as torch does.

Source: c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig of PyTorch 2.11.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchtally.errors import UsageError

MIB = 1024 * 1024
UNLIMITED = 2**63
SMALL_REQUEST_BYTES = MIB
"""The largest request that is packed into a small segment."""
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_BYTES = 10 * MIB
"""Requests below get a segment of `large_segment_bytes`, to be shared."""
LARGE_SEGMENT_BYTES = 20 * MIB
ROUND_LARGE_BYTES = 2 * MIB

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where torch looks, in this order."""

ROUNDED_FROM_LOG2 = 20
ROUNDED_INTERVALS = 16
"""`roundup_power2_divisions` has a value for each power of two from 1 MiB to 64 GiB."""

NO_DIVISIONS = (0,) * ROUNDED_INTERVALS

IGNORED = frozenset(
    """
    backend pinned_use_background_threads pinned_use_cuda_host_register
    pinned_num_register_threads pinned_reserve_segment_size_mb pinned_max_round_threshold_mb
    pinned_max_cached_size_mb release_lock_on_cudamalloc graph_capture_record_stream_reuse
    """.split()
)
"""Options of torch that have no say in how much device memory is taken."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The options that decide how much memory is reserved. The defaults are torch's."""

    max_split_bytes: int = UNLIMITED
    """Larger blocks are not split, and kept for requests of nearly their size."""
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    """How much larger than a request an unsplittable block may be to serve it."""
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    garbage_collection_threshold: float = 0.0
    """Above this share of the allowed memory, blocks that were not reused lately are freed."""
    is_expandable: bool = False
    """Segments grow in place instead of being added."""
    roundup_power2_divisions: tuple[int, ...] = NO_DIVISIONS
    per_process_memory_fraction: float | None = None
    """Share of the device's memory this process may reserve; None: no limit of its own."""
    text: str = ""
    """As the user wrote it."""

    @classmethod
    def parse(cls, text: str) -> "AllocatorSettings":
        """Settings from the text of the environment variable.

        Raises UsageError for an option torch does not know or a value it refuses.
        """
        settings = cls(text=text)
        for option, value in options(text):
            settings = settings.having(option, value)
        return settings

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> "AllocatorSettings":
        """Settings from the environment variables; the defaults where they are not set."""
        for name in VARIABLES:
            if environment.get(name):
                return cls.parse(environment[name])
        return cls()

    def having(self, option: str, value: str) -> "AllocatorSettings":
        """These settings with one option set, its value parsed from text."""
        if option in IGNORED:
            return self
        if option not in OPTIONS:
            raise UsageError(
                f"{VARIABLES[1]}: unknown option {option!r}.\n"
                f"Those that change how much memory is reserved: {', '.join(OPTIONS)}."
            )
        field, parse = OPTIONS[option]
        return replace(self, **{field: parse(option, value)})

    def divisions_at(self, size_bytes: int) -> int:
        """Number of steps into which the power of two around a size is divided; 0 or 1: none."""
        interval = size_bytes.bit_length() - 1 - ROUNDED_FROM_LOG2
        return self.roundup_power2_divisions[min(max(interval, 0), ROUNDED_INTERVALS - 1)]

    @property
    def rounds_up(self) -> bool:
        return self.roundup_power2_divisions is not NO_DIVISIONS


def options(text: str) -> Iterator[tuple[str, str]]:
    """(option, value) pairs of "a:1,b:[1:2,3:4]"; blanks mean nothing."""
    bare = re.sub(r"\s", "", text)
    for part in re.split(r",(?![^\[]*\])", bare):
        if not part:
            continue
        option, colon, value = part.partition(":")
        if not colon or not value:
            raise UsageError(
                f"{VARIABLES[1]}: expected name:value, got {part!r}.\n"
                "Separate options by commas: "
                "expandable_segments:True,max_split_size_mb:128"
            )
        yield option, value


def mebibytes(at_least: int) -> Callable[[str, str], int]:
    def parse(option: str, value: str) -> int:
        if not value.isdecimal() or int(value) < at_least:
            raise wrong(option, value, f"a whole number of MiB, {at_least} or more")
        return min(int(value) * MIB, UNLIMITED)

    return parse


def share(option: str, value: str) -> float:
    try:
        fraction = float(value)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise wrong(option, value, "a number between 0 and 1")
    return fraction


def threshold(option: str, value: str) -> float:
    fraction = share(option, value)
    if not 0 < fraction < 1:
        raise wrong(option, value, "a number between 0 and 1")
    return fraction


def flag(option: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise wrong(option, value, "True or False")
    return value == "True"


def divisions(option: str, value: str) -> tuple[int, ...]:
    """One number for all sizes ("4"), or one for each power of two ("[256:1,512:2,>:4]")."""
    if not value.startswith("["):
        return (power_of_two(option, value),) * ROUNDED_INTERVALS
    by_interval = [0] * ROUNDED_INTERVALS
    last = 0
    for number, pair in enumerate(value.strip("[]").split(",")):
        size, colon, count = pair.partition(":")
        if not colon:
            raise wrong(option, value, "a list like [256:1,512:2,>:4]")
        parts = 0 if count == "0" else power_of_two(option, count)
        if size == ">":
            by_interval[last + 1 :] = [parts] * (ROUNDED_INTERVALS - last - 1)
            continue
        # torch takes the logarithm of the number of MiB for the interval's place
        place = min(power_of_two(option, size).bit_length() - 1, ROUNDED_INTERVALS - 1)
        if number == 0:
            by_interval[:place] = [parts] * place
        by_interval[place] = parts
        last = place
    return tuple(by_interval)


def power_of_two(option: str, value: str) -> int:
    if not value.isdecimal() or int(value).bit_count() != 1:
        raise wrong(option, value, "a power of two")
    return int(value)


def wrong(option: str, value: str, expected: str) -> UsageError:
    return UsageError(f"{VARIABLES[1]}: {option}:{value} is not {expected}.")


OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "max_split_size_mb": ("max_split_bytes", mebibytes(20)),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", mebibytes(20)),
    "large_segment_size_mb": ("large_segment_bytes", mebibytes(11)),
    "garbage_collection_threshold": ("garbage_collection_threshold", threshold),
    "per_process_memory_fraction": ("per_process_memory_fraction", share),
    "expandable_segments": ("is_expandable", flag),
    "roundup_power2_divisions": ("roundup_power2_divisions", divisions),
}
"""By torch's name: the field of the settings, and how its text is read."""
