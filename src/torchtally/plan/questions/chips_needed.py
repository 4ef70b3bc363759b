"""How many of these chips meet a deadline, or which chips are cheapest to rent for a training?"""

from collections.abc import Iterable
from dataclasses import dataclass

from torchtally.chips import Chip, known_chips
from torchtally.errors import UsageError
from torchtally.plan.closed_form import Bytes, Chips, closed_form
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer, Part
from torchtally.plan.questions.bill import bill, price_of, unknown_costs
from torchtally.plan.questions.fit import capacity_of
from torchtally.plan.questions.model_card import states_of
from torchtally.plan.questions.request import Request, flops_per_token, peak_flop_per_s
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


def what_to_rent(request: Request) -> Answer:
    """Every chip with a price and a peak for the recipe, the cheapest training first.

    Within the deadline and the budget, if given.
    """
    per_token, counted = flops_per_token(request)
    tokens = request.of_tokens
    flops = training_flops_of(per_token, tokens)
    mfu = request.of_mfu
    offers = sorted(
        _offers(request, flops, mfu), key=lambda offer: (offer.cost.value, offer.chip.name)
    )
    if not offers:
        raise UsageError(
            f"No chip of the table has both a price and a {request.recipe.products} peak. Give "
            "both: --gpus H100-SXM --price 2.49."
        )
    best = offers[0]
    limit = request.budget_usd
    headline: list[Part] = [
        f"{best.chip.name} is cheapest: ",
        best.cost,
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
        tables=(_offers_table(offers, request),),
        assumptions=(
            *counted,
            SAME_MFU,
            ANY_NUMBER,
            "Prices are single offers, dated in the table (`tally gpus CHIP`), not the market: "
            "--gpus CHIP --price 2.49 sets yours.",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Offer:
    """One chip, and what the training costs on it."""

    chip: Chip
    price: Quantity
    hours: Quantity
    count: Quantity | None
    """How many meet the deadline; None without a deadline."""

    @property
    def cost(self) -> Quantity:
        return cost_usd(self.hours, self.price)


def _offers(request: Request, flops: Quantity, mfu: Quantity) -> Iterable[_Offer]:
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
        yield _Offer(chip, price, hours, count)


def _offers_table(offers: list[_Offer], request: Request) -> Table:
    columns = [
        Column("chip", "chip", Unit.NAME),
        Column("cost_usd", "cost", Unit.USD),
        Column("gpu_hours", "chip-hours", Unit.HOURS),
        Column("usd_per_hour", "price", Unit.USD_PER_HOUR),
        Column("memory_bytes", "memory", Unit.BYTES, rank=1),
        Column("price_as_of", "offer of", Unit.WORD, rank=2),
    ]
    if request.deadline_s is not None:
        columns.insert(2, Column("chip_count", "chips", Unit.CHIPS))

    def row(offer: _Offer) -> tuple[Cell, ...]:
        as_of = offer.chip.price.as_of if offer.chip.price is not None else ""
        cells: list[Cell] = [
            offer.chip.name,
            offer.cost.value,
            offer.hours.value,
            offer.price.value,
            offer.chip.memory_bytes,
            as_of,
        ]
        if offer.count is not None:
            cells.insert(2, offer.count.value)
        return tuple(cells)

    return Table(
        title="What to rent, cheapest first",
        columns=tuple(columns),
        rows=tuple(map(row, offers)),
        totals=(None,) * len(columns),
    )
