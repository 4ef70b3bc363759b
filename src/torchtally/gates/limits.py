"""GaugeReading `peak < 24GiB`: a quantity, a relation, an amount in the quantity's unit."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torchtally.errors import UsageError, did_you_mean
from torchtally.gates.gauges import GAUGES
from torchtally.units import (
    Unit,
    parse_bytes,
    parse_count,
    parse_flop_per_s,
    parse_fraction,
    parse_number,
    parse_seconds,
    parse_usd,
)

FORM = re.compile(r"\s*(?P<name>[^<>=]+?)\s*(?P<relation><=|>=|<|>)\s*(?P<amount>[^<>=\s][^<>=]*)")
RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EXAMPLES = "'peak < 24GiB', 'step <= 200ms', 'mfu > 40%'"
MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class LimitText:
    """A limit before it is known what it limits: three texts."""

    name: str
    relation: str
    amount: str

    def __str__(self) -> str:
        return f"{self.name} {self.relation} {self.amount}"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a quantity must be."""

    name: str
    relation: str
    amount: float
    """In the unit of the quantity: FLOPs, bytes, seconds."""
    text: str

    def holds(self, value: float) -> bool:
        return RELATIONS[self.relation](value, self.amount)

    @property
    def is_upper(self) -> bool:
        """The quantity must stay below."""
        return self.relation.startswith("<")


def parse_limits(texts: Iterable[str]) -> list[Limit]:
    """Limits of a run. Raises UsageError for an unknown quantity, and for another unit."""
    units = {name: gauge.unit for name, gauge in GAUGES.items()}
    return [limit_of(parse_comparison(text), units) for text in texts]


def parse_comparison(text: str) -> LimitText:
    """The three parts of a limit. Raises UsageError for anything else."""
    match = FORM.fullmatch(text) if len(text) <= MOST_CHARACTERS else None
    if match is None:
        raise UsageError(f"{text[:MOST_CHARACTERS]!r} is not a limit. These work: {EXAMPLES}.")
    return LimitText(plain(match["name"]), match["relation"], match["amount"].strip())


def plain(name: str) -> str:
    """A quantity's name as it is compared: training-time, Training time; loss-chinchilla-law."""
    return re.sub(r"[\s,_-]+", "-", name.strip().lower())


def limit_of(comparison: LimitText, units: Mapping[str, Unit]) -> Limit:
    """The limit on one of these quantities. Raises UsageError for any other, and for an amount that
    is not in its unit: bytes and seconds need one.
    """
    unit = units.get(comparison.name)
    if unit is None:
        raise UsageError(
            f"{str(comparison)!r}: unknown quantity {comparison.name!r}. "
            f"{did_you_mean(comparison.name, units)}"
        )
    try:
        amount = amount_of(comparison.amount, unit)
    except UsageError as error:
        raise UsageError(f"{str(comparison)!r}: {error}") from None
    return Limit(comparison.name, comparison.relation, amount, str(comparison))


def amount_of(text: str, unit: Unit) -> float:
    """The amount in this unit. Raises UsageError for what is not one."""
    if unit is Unit.BYTES:
        if text[-1:].isdigit():
            raise UsageError(f"{text!r} has no unit. These work: 24GiB, 80GB, 512B.")
        return parse_bytes(text)
    if unit is Unit.FLOPS:
        try:
            return parse_flop_per_s(f"{text.removesuffix('FLOPs').strip()}FLOP/s")
        except UsageError:
            message = f"{text!r} is not a number of FLOPs. These work: 6.3T, 10GFLOPs, 3e12."
            raise UsageError(message) from None
    if unit in (Unit.PARAMETERS, Unit.TOKENS, Unit.COUNT):
        return parse_count(text)
    readers: Mapping[Unit, Callable[[str], float]] = {
        Unit.SECONDS: parse_seconds,
        Unit.FRACTION: parse_fraction,
        Unit.FLOP_PER_S: parse_flop_per_s,
        Unit.USD: parse_usd,
    }
    return readers.get(unit, parse_number)(text)
