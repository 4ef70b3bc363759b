"""What a training costs: its time, its price and its energy, from the time of one step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, floor

from torchtally.chips import Chip, Offer, Price
from torchtally.chips.chip import SECONDS_PER_HOUR
from torchtally.chips.power import IDLE_SHARE_OF_POWER, mean_power_watts
from torchtally.errors import UsageError
from torchtally.ledger import Ledger
from torchtally.table import Cell, Column, Number, Prose, Table, sentences
from torchtally.units import Unit
from torchtally.views.ranks import data_parallel_ranks
from torchtally.views.throughput import tokens_of


class Extent(StrEnum):
    """What the length of a training is given in."""

    STEPS = "steps"
    SECONDS = "seconds"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Until:
    """How long to train: so many steps, seconds of wall time, or tokens."""

    amount: float
    extent: Extent

    def after(self, text: str) -> Prose:
        """The text, followed by the length."""
        if self.extent is Extent.SECONDS:
            hours = self.amount / SECONDS_PER_HOUR
            return (text, Number(int(hours) if hours.is_integer() else hours, Unit.HOURS))
        unit = Unit.STEPS if self.extent is Extent.STEPS else Unit.TOKENS
        return (text, Number(self.amount, unit), f" {self.extent}")


THOUSAND_STEPS = Until(1000, Extent.STEPS)


@dataclass(frozen=True, slots=True)
class Training:
    """Steps of equal length, one after the other."""

    steps: int | None
    """None where no training step is known."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Bill:
    """What a training takes on one chip. None: what it depends on is not known."""

    training: Training | None
    price: Price | None
    cost_usd: float | None
    energy_joules: float | None
    missing: tuple[str, ...]
    """Why, for each None."""


def training(until: Until, step_s: float, tokens_per_step: int | None) -> Training:
    """Whole steps: as many as the wall time holds, or as many as the tokens take.

    Raises UsageError for tokens where a step's are not known.
    """
    if until.extent is Extent.SECONDS:
        return Training(floor(until.amount / step_s), until.amount)
    if until.extent is Extent.STEPS:
        return Training(int(until.amount), until.amount * step_s)
    if not tokens_per_step:
        raise UsageError(
            "The tokens per step of this script are unknown. Give the length in steps or as "
            "time: --until 600000, --until 24h."
        )
    steps = ceil(until.amount / tokens_per_step)
    return Training(steps, steps * step_s)


def busy_share(ledger: Ledger) -> float:
    """Share of the step's predicted time in which the device is at work; 0 of no time."""
    total = ledger.total
    return min(total.kernel_s / total.seconds, 1.0) if total.seconds > 0 else 0.0


def why_no_time(ledger: Ledger) -> str:
    """Why the time of the step is not known; "" where it is. One without a part is not known."""
    if ledger.roofline is None:
        return f"no time: {ledger.trace.chip} is not in the chip table"
    if ledger.untimed:
        first = ledger.untimed[0]
        more = f" (and {len(ledger.untimed) - 1} more)" if len(ledger.untimed) > 1 else ""
        return f"no time for {first.op} x {first.count}{more}: {first.reason}"
    return "" if ledger.total.seconds > 0 else "no time: the step ran nothing"


def tokens_of_step(ledger: Ledger) -> int | None:
    """What one training step of all ranks works on; None where nothing shows it."""
    batch = tokens_of(ledger) if ledger.trace.step_ends else None
    if batch is None:
        return None
    ranks = data_parallel_ranks(ledger)
    is_of_many = ledger.trace.world.size > 1
    return None if is_of_many and ranks is None else batch.size * (ranks or 1)


def _why_no_steps(ledger: Ledger, until: Until) -> str:
    """A run without a training step has a cost of time, not of steps."""
    if _is_of_one_step(ledger) or until.extent is Extent.SECONDS:
        return ""
    if not ledger.trace.step_ends:
        return "no cost of steps: no training step was completed"
    return f"no cost of steps: this is {ledger.period}; --step N chooses one, --by step lists them"


def check_length(ledger: Ledger, until: Until) -> None:
    """Raise UsageError for a training that is to be made of several steps that differ."""
    if ledger.reported_period.steps > 1 and until.extent is not Extent.SECONDS:
        raise UsageError(
            f"Costs are those of one training step, repeated, and this is {ledger.period}.\n"
            "Choose one: --step N; `--by step` lists them."
        )


def _is_of_one_step(ledger: Ledger) -> bool:
    return bool(ledger.trace.step_ends) and ledger.reported_period.steps <= 1


def bill(
    ledger: Ledger, until: Until, own_price: Price | None, tokens_per_step: int | None
) -> Bill:
    """What a training takes on the chip that the ledger was timed for.

    Of a period of several steps costs are known by the time alone, not by steps or tokens.

    Raises UsageError for tokens where a step's are not known.
    """
    chip = None if ledger.roofline is None else ledger.roofline.chip
    price = own_price or (chip.price if chip else None)
    missing = [why_no_time(ledger) or _why_no_steps(ledger, until)]
    if price is None:
        missing.append("price unknown: no source gives one; give yours with --price")
    tdp_watts = chip.tdp_watts if chip else None
    if tdp_watts is None:
        missing.append("energy unknown: no source gives its power")
    gpus = ledger.trace.world.size
    lasting = None if missing[0] else training(until, ledger.total.seconds, tokens_per_step)
    if lasting and not _is_of_one_step(ledger):
        lasting = replace(lasting, steps=None)
    return Bill(
        training=lasting,
        price=price,
        cost_usd=(gpus * price.cost_usd(lasting.seconds) if lasting and price else None),
        energy_joules=(
            gpus * lasting.seconds * mean_power_watts(tdp_watts, busy_share(ledger))
            if lasting and tdp_watts
            else None
        ),
        missing=tuple(name for name in missing if name),
    )


OWN = "yours"


def own_price(usd_per_hour: float) -> Price:
    """A price that the user gave."""
    return Price((Offer(usd_per_hour, source=OWN, as_of=""),))


def own_price_of(chip: Chip, prices: Mapping[str, float]) -> Price | None:
    """The user's price of a chip, by the chip's name."""
    return own_price(prices[chip.name]) if chip.name in prices else None


COLUMNS = (
    Column("chip", "chip", Unit.NAME),
    Column("seconds", "duration", Unit.SECONDS),
    Column("gpu_hours", "GPU-hours", Unit.HOURS),
    Column("cost_usd", "cost", Unit.USD),
    Column("usd_per_hour", "per hour", Unit.USD),
    Column("price_as_of", "priced", Unit.WORD),
    Column("energy_joules", "energy", Unit.JOULES),
    Column("steps", "steps", Unit.COUNT, rank=1),
    Column("tokens", "tokens", Unit.COUNT, rank=2),
    Column("price_source", "price from", Unit.TEXT, rank=3),
    Column("missing", "not known", Unit.TEXT, rank=4),
)


def money(ledger: Ledger, until: Until, *, own_price: Price | None = None) -> Table:
    """What a training as long as `until` takes on the chip that the ledger was timed for.

    Raises UsageError for tokens where a step's are not known, and for a number of steps or tokens
    where the ledger is of several steps.
    """
    check_length(ledger, until)
    tokens_per_step = tokens_of_step(ledger)
    charge = bill(ledger, until, own_price, tokens_per_step)
    lasting, price, gpus = charge.training, charge.price, ledger.trace.world.size
    steps = lasting.steps if lasting else None
    name = ledger.trace.chip if ledger.roofline is None else ledger.roofline.chip.name
    row: tuple[Cell, ...] = (
        name,
        lasting.seconds if lasting else None,
        gpus * lasting.seconds / SECONDS_PER_HOUR if lasting else None,
        charge.cost_usd,
        price.usd_per_hour if price else None,
        price_date(price),
        charge.energy_joules,
        steps,
        steps * tokens_per_step if steps and tokens_per_step else None,
        price.source if price else "",
        "; ".join(charge.missing),
    )
    table = Table(
        title=until.after("Training for "),
        columns=COLUMNS,
        rows=(row,),
        note=sentences(*_remarks(ledger, charge, name)),
    )
    return with_something(table, optional=("tokens", "missing"))


def with_something(table: Table, *, optional: Collection[str]) -> Table:
    """The table without those of the optional columns in which no row has anything."""
    kept = [
        place
        for place, column in enumerate(table.columns)
        if column.name not in optional or any(row[place] for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
        totals=tuple(table.totals[place] for place in kept),
    )


def _remarks(ledger: Ledger, bill: Bill, name: str) -> list[Prose]:
    remarks: list[Prose] = [f"{name}: {'; '.join(bill.missing)}."] if bill.missing else []
    if bill.training is not None:
        remarks.append(
            f"Every step is assumed to take as long as {ledger.period}, on {gpus_text(ledger)}, "
            "with nothing in between: no evaluation, no checkpoints, no start-up."
        )
        if len(ledger.trace.step_ends) == 1:
            remarks.append(FIRST_STEP_NOTE)
    if bill.price is not None:
        remarks.append(f"Price of the GPU's time alone: {price_text(bill.price)}.")
    if bill.energy_joules is not None:
        remarks.append(ENERGY_NOTE)
    return remarks


def gpus_text(ledger: Ledger) -> str:
    """Text of as many GPUs as the run has ranks."""
    world = ledger.trace.world
    return "one GPU" if world.size == 1 else f"{world.size} GPUs that take as long as this one"


FIRST_STEP_NOTE = (
    "The step includes everything before it: trace two steps for the time of later ones."
)
ENERGY_NOTE: Prose = (
    "Energy is estimated, for the GPU only: rated power while it is busy, ",
    Number(IDLE_SHARE_OF_POWER, Unit.FRACTION),
    " of it while it waits. The cost does not include it.",
)


def price_date(price: Price | None) -> str:
    """The day of a price, or that the user gave it; "" of none."""
    return "" if price is None else price.as_of or price.source


def price_text(price: Price) -> str:
    """Who says so, and when."""
    if len(price.offers) > 1:
        return f"{price.note}; `tally gpus CHIP` lists them"
    (offer,) = price.offers
    if offer.source == OWN:
        return "yours"
    note = f" ({offer.note})" if offer.note else ""
    return f"{offer.source}, one offer as of {offer.as_of}{note}"
