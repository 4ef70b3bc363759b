"""Forms of values that only `tally plan` takes."""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from torchtally.errors import UsageError, did_you_mean
from torchtally.options import SHARE, Form, among
from torchtally.plan.inference import engines, formats
from torchtally.plan.kv_cache import ALIASES, CACHE_FORMATS, cache_format
from torchtally.plan.optimizers import OPTIMIZERS
from torchtally.plan.parallel.overlap import DEFAULTS
from torchtally.plan.recipes import RECIPES
from torchtally.plan.stacks.stack import stack
from torchtally.units import parse_fraction, parse_usd

T = TypeVar("T")

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


def overlap_shares(text: str) -> dict[str, float]:
    """Shares by degree of "tensor=1,expert=27%"."""
    shares: dict[str, float] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        degree, mark, share = word.partition("=")
        if degree not in DEFAULTS:
            raise UsageError(f"{degree!r} is unknown. {did_you_mean(degree, DEFAULTS)}")
        if not mark:
            raise UsageError(f"{degree}: give a share, {degree}=1 or {degree}=27%.")
        shares[degree] = parse_fraction(share)
    return shares


def stack_word(text: str) -> str:
    """The word, of a stack that is known."""
    try:
        stack(text)
    except UsageError as error:
        raise UsageError(str(error).removeprefix("--stack: ")) from None
    return text


CARDS = re.compile(r"(?:([1-9]\d{0,2}) ?x ?)?(\d+(?:\.\d+)?) ?([GT])(?:b|bit)/s", re.ASCII)


def network_cards(text: str) -> tuple[int | None, float]:
    """(cards of a node, bits per second of each) of "8x400Gb/s" or "400Gb/s"."""
    match = CARDS.fullmatch(text.strip())
    if match is None or not float(match[2]):
        raise UsageError(f"{text[:40]!r}: give [CARDSx]RATE in bits: 8x400Gb/s, or 400Gb/s.")
    scale = {"G": 1e9, "T": 1e12}[match[3]]
    return int(match[1]) if match[1] else None, float(match[2]) * scale


def spelled(find: Callable[[str], T], *names: Iterable[str]) -> dict[str, T]:
    """What is found by each of these names."""
    return {name: find(name) for some in names for name in some}


WEIGHTS = (*formats.WEIGHT_FORMATS, *formats.ALIASES)
RECIPE = Form("NAME", among(RECIPES))
OPTIMIZER = Form("NAME", among(OPTIMIZERS))
WEIGHT_FORMAT = Form(
    "FORMAT",
    among(
        spelled(formats.weight_format, WEIGHTS, map(str.upper, WEIGHTS), map(str.lower, WEIGHTS))
    ),
)
CACHE_FORMAT = Form("FORMAT", among(spelled(cache_format, CACHE_FORMATS, ALIASES)))
ENGINE = Form("NAME", among(spelled(engines.engine, engines.ENGINES, engines.ALIASES)))
IMAGE_SIZES = Form("[COUNTx]PIXELS", image_sizes)
TARGETS = Form("NAMES", target_names)
MFU = Form("SHARE", share_above_zero)
PRICE = Form("USD", usd_per_hour)
STACK = Form("NAME", stack_word)
OVERLAP = Form("SHARES", overlap_shares)
NETWORK = Form("[CARDSx]RATE", network_cards)
