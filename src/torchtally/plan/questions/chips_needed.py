"""How many of these chips meet a deadline, or which chips are cheapest to rent for a training?"""

from collections.abc import Iterable
from dataclasses import dataclass

from torchtally.chips import Chip, Price, known_chips
from torchtally.errors import UsageError
from torchtally.plan.closed_form import Bytes, Chips, closed_form
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer, Part
from torchtally.plan.questions.bill import OWN_PRICE, bill, price_of, unknown_costs
from torchtally.plan.questions.fit import capacity_of
from torchtally.plan.questions.model_card import states_of
from torchtally.plan.questions.plan_options import MODEL, PEAK
from torchtally.plan.questions.request import Request, flops_per_token, peak_flop_per_s
from torchtally.plan.questions.uses import counted_fields, uses
from torchtally.plan.questions.words import subject_text
from torchtally.plan.training import (
    chip_hours,
    chips_needed,
    cost_usd,
    training_flops_of,
    training_s,
)
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit

SAME_MFU = "The same MFU on every chip, although faster chips are harder to keep busy."
ANY_NUMBER = (
    "Perfect scaling, without communication: --search finds a layout and counts its communication."
)


@uses(
    MODEL,
    PEAK,
    "tokens",
    "mfu",
    "deadline_s",
    "optimizer",
    "memory_bytes",
    "usd_per_hour",
    counted_fields,
)
def fewest_chips(request: Request) -> Answer:
    """The fewest of one chip that train in time, with what they cost."""
    per_token, counted = flops_per_token(request)
    tokens = request.of_tokens
    chip, deadline = request.chip, request.of_deadline
    flops = training_flops_of(per_token, tokens)
    mfu = request.of_mfu
    peak = peak_flop_per_s(request, chip)
    in_time = chips_needed(flops, deadline, peak, mfu).with_name("chips for the deadline")
    for_memory = chips_to_hold(request)
    count = _most_chips(in_time, for_memory)
    seconds = training_s(flops, count, peak, mfu)
    return Answer(
        question="fewest-chips",
        headline=(
            count,
            f" {chip.name} train {subject_text(request)} on ",
            tokens,
            " tokens within ",
            deadline,
            " at ",
            mfu,
            " MFU",
        ),
        figures=(count, in_time, for_memory, seconds, flops, *bill(request, count, seconds, chip)),
        assumptions=(*counted, ANY_NUMBER, *_asked_instead(request)),
        unknown=unknown_costs(request, chip),
    )


def _asked_instead(request: Request) -> tuple[str, ...]:
    """A number in --gpus is not what the answer is about."""
    given = request.of_cluster.count
    if given == 1:
        return ()
    return (f"However many chips are needed, not the {given} of --gpus (leave --deadline out).",)


@closed_form("chips", Unit.CHIPS)
def _most_chips(for_time: Chips, for_memory: Chips) -> str:
    return "max(for_time, for_memory)"


def chips_to_hold(request: Request) -> Quantity:
    """The fewest of the chip whose memory holds all states, shared among them (FSDP)."""
    return _chips_to_hold(states_of(request).total, capacity_of(request))


@closed_form(
    "chips to hold the states",
    Unit.CHIPS,
    note="parameters, gradients and optimizer state; activations come on top",
)
def _chips_to_hold(states: Bytes, memory: Bytes) -> str:
    return "ceil(states / memory)"


@uses(MODEL, "tokens", "mfu", "deadline_s", "budget_usd", "recipe", "usd_per_hour", counted_fields)
def what_to_rent(request: Request) -> Answer:
    """Every chip with a price and a peak for the recipe, the cheapest training first.

    Within the deadline and the budget, if given.
    """
    per_token, counted = flops_per_token(request)
    tokens = request.of_tokens
    flops = training_flops_of(per_token, tokens)
    mfu = request.of_mfu
    rentals = sorted(
        _rentals(request, flops, mfu), key=lambda rental: (rental.cost.value, rental.chip.name)
    )
    if not rentals:
        raise UsageError(
            f"No chip of the table has both a price and a {request.recipe.products} peak. Give "
            "both: --gpus H100-SXM --price 2.49."
        )
    best = rentals[0]
    limit = request.budget_usd
    headline: list[Part] = [
        f"{best.chip.name} is cheapest: ",
        best.cost,
        *_range(best),
        f" to train {subject_text(request)} on ",
        tokens,
        " tokens at ",
        mfu,
        " MFU",
    ]
    if limit is not None and best.cost.value > limit:
        headline += [", which is more than the budget of ", of(limit, Unit.USD).with_name("budget")]
    return Answer(
        question="what-to-rent",
        headline=tuple(headline),
        figures=(best.cost, best.hours, flops),
        tables=(_rentals_table(rentals, request),),
        assumptions=(
            *counted,
            SAME_MFU,
            ANY_NUMBER,
            "Prices are medians of the known offers, dated in `tally gpus CHIP`; a single offer "
            "is not the market. --gpus CHIP --price 2.49 sets yours.",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Rental:
    """One chip, and what the training costs on it."""

    chip: Chip
    price: Quantity
    hours: Quantity
    count: Quantity | None
    """How many meet the deadline; None without a deadline."""

    @property
    def cost(self) -> Quantity:
        return cost_usd(self.hours, self.price)

    def cost_at(self, usd_per_hour: float) -> Quantity:
        """Cost at the price of one offer."""
        return cost_usd(self.hours, of(usd_per_hour, Unit.USD_PER_HOUR).with_name("an offer"))

    @property
    def offers(self) -> Price | None:
        """What sellers ask; None where the price is the user's own."""
        return None if self.price.note == OWN_PRICE else self.chip.price


def _range(rental: _Rental) -> Iterable[Part]:
    """Range from the lowest offer to the highest, or that there is one."""
    price = rental.offers
    if price is None:
        return ()
    if len(price.offers) == 1:
        return (f" (one offer of {price.as_of}, not the market)",)
    low, high = rental.cost_at(price.lowest), rental.cost_at(price.highest)
    return (f" at the median of {price.many} (", low, " to ", high, ")")


def _rentals(request: Request, flops: Quantity, mfu: Quantity) -> Iterable[_Rental]:
    for chip in known_chips():
        price = price_of(request, chip)
        if price is None or request.recipe.products not in chip.peaks:
            continue
        peak = peak_flop_per_s(request, chip)
        one = of(1, Unit.CHIPS).with_name("one chip")
        hours = chip_hours(one, training_s(flops, one, peak, mfu))
        count = None
        if request.deadline_s is not None:
            count = chips_needed(flops, request.of_deadline, peak, mfu)
        yield _Rental(chip, price, hours, count)


def _rentals_table(rentals: list[_Rental], request: Request) -> Table:
    columns = [
        Column("chip", "chip", Unit.NAME),
        Column("cost_usd", "cost", Unit.USD),
        Column("lowest_cost_usd", "lowest", Unit.USD),
        Column("highest_cost_usd", "highest", Unit.USD),
        Column("offer_count", "offers", Unit.COUNT),
        Column("gpu_hours", "chip-hours", Unit.HOURS),
        Column("usd_per_hour", "price", Unit.USD_PER_HOUR, rank=1),
        Column("memory_bytes", "memory", Unit.BYTES, rank=2),
        Column("price_as_of", "offers since", Unit.WORD, rank=3),
    ]
    if request.deadline_s is not None:
        columns.insert(5, Column("chip_count", "chips", Unit.CHIPS))

    def row(rental: _Rental) -> tuple[Cell, ...]:
        price = rental.offers
        ends = (price.lowest, price.highest) if price else (rental.price.value,) * 2
        cells: list[Cell] = [
            rental.chip.name,
            rental.cost.value,
            *(rental.cost_at(usd_per_hour).value for usd_per_hour in ends),
            len(price.offers) if price else None,
            rental.hours.value,
            rental.price.value,
            rental.chip.memory_bytes,
            price.as_of if price else "",
        ]
        if rental.count is not None:
            cells.insert(5, rental.count.value)
        return tuple(cells)

    return Table(
        title="What to rent, cheapest first",
        columns=tuple(columns),
        rows=tuple(map(row, rentals)),
        totals=(None,) * len(columns),
    )
