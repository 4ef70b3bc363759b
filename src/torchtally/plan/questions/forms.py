"""Forms of values that only `tally plan` takes."""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

from torchtally.errors import UsageError
from torchtally.options import SHARE, Form, among
from torchtally.plan.inference import engines, formats
from torchtally.plan.kv_cache import ALIASES, CACHE_FORMATS, cache_format
from torchtally.plan.optimizers import OPTIMIZERS
from torchtally.plan.recipes import RECIPES
from torchtally.units import parse_usd

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)

IMAGES = re.compile(r"((?P<count>[1-9]\d{0,3})x)?(?P<size>[1-9]\d{0,4})", re.ASCII)


def image_sizes(text: str) -> tuple[int, int]:
    """(how many, pixels of a side) of "4x336" or "336"."""
    match = IMAGES.fullmatch(text)
    if match is None:
        raise UsageError(f"{text[:40]!r}: give COUNTxPIXELS (2x336), or the pixels of a side (512)")
    return int(match["count"] or 1), int(match["size"])


def target_names(text: str) -> tuple[str, ...]:
    """Matrices with an adapter, of "q,v"."""
    targets = tuple(word.strip() for word in text.split(",") if word.strip())
    if not targets:
        raise UsageError("no matrices given. These work: q,v or all-linear.")
    return targets


def share_above_zero(text: str) -> float:
    """An MFU."""
    share: float = SHARE.read(text)
    if share == 0:
        raise UsageError("must be above 0; 0.3 to 0.6 is usual.")
    return share


def usd_per_hour(text: str) -> float:
    """The price of one chip. That of one among several, "H200=2.49", is of `tally show`."""
    amount = text.rpartition("=")[2]
    try:
        price = parse_usd(amount)
    except UsageError:
        price = 0.0
    if not 0 < price < 1e6:
        raise UsageError(f"{text!r} is not the price of a GPU for an hour. These work: 2.49")
    if amount != text:
        raise UsageError(f"it is that of the chip in --gpus: give the amount alone, {amount}.")
    return price


def named(choices: type[Choice]) -> dict[str, Choice]:
    """The choices by their values."""
    return {choice.value: choice for choice in choices}


def spelled(find: Callable[[str], T], *names: Iterable[str]) -> dict[str, T]:
    """What is found by each of these names."""
    return {name: find(name) for some in names for name in some}


WEIGHTS = (*formats.WEIGHT_FORMATS, *formats.ALIASES)
RECIPE = Form("NAME", among(RECIPES))
OPTIMIZER = Form("NAME", among(OPTIMIZERS))
WEIGHT_FORMAT = Form("FORMAT", among(spelled(
    formats.weight_format, WEIGHTS, map(str.upper, WEIGHTS), map(str.lower, WEIGHTS)
)))  # fmt: skip
CACHE_FORMAT = Form("FORMAT", among(spelled(cache_format, CACHE_FORMATS, ALIASES)))
ENGINE = Form("NAME", among(spelled(engines.engine, engines.ENGINES, engines.ALIASES)))
IMAGE_SIZES = Form("[COUNTx]PIXELS", image_sizes)
TARGETS = Form("NAMES", target_names)
MFU = Form("SHARE", share_above_zero)
PRICE = Form("USD", usd_per_hour)
