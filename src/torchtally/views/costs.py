"""What each row of a view costs: money and energy beside its time, in every view that has times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtally.chips import Price
from torchtally.chips.power import mean_power_watts
from torchtally.ledger import Ledger
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit
from torchtally.views.columns import SECONDS
from torchtally.views.money import busy_share, gpus_text, price_text, why_no_time

COST = Column("cost_usd", "cost", Unit.USD, on_request=True)
ENERGY = Column("energy_joules", "energy", Unit.JOULES, on_request=True)


@dataclass(frozen=True, slots=True)
class CostRate:
    """What a second of the reported period costs on all GPUs of the run, and why it is so."""

    column: Column
    per_second: float | None
    """None: unknown, as the column's note says."""

    def of(self, seconds: Cell) -> float | None:
        """What so many seconds cost; None where that, or how many they are, is unknown."""
        if self.per_second is None or not isinstance(seconds, int | float):
            return None
        return seconds * self.per_second


def with_costs(table: Table, ledger: Ledger, own_price: Price | None = None) -> Table:
    """The table with money and energy of each row's time, shown where they are asked for.

    Their totals are those of the table's time. A table without times stays as it is.
    """
    names = [column.name for column in table.columns]
    if SECONDS.column.name not in names or not ledger.is_timed:
        return table
    rates = [
        rate
        for rate in (_cost_rate(ledger, own_price), _energy_rate(ledger))
        if rate.column.name not in names
    ]
    place = names.index(SECONDS.column.name)

    def extended(cells: Sequence[Cell]) -> tuple[Cell, ...]:
        costs = (rate.of(cells[place]) for rate in rates)
        return (*cells[: place + 1], *costs, *cells[place + 1 :])

    columns = (*table.columns[: place + 1], *(rate.column for rate in rates))
    return replace(
        table,
        columns=(*columns, *table.columns[place + 1 :]),
        rows=tuple(map(extended, table.rows)),
        totals=extended(table.totals),
    )


def _cost_rate(ledger: Ledger, own_price: Price | None) -> CostRate:
    chip = None if ledger.roofline is None else ledger.roofline.chip
    price = own_price or (chip.price if chip else None)
    why_not = why_no_time(ledger)
    if not why_not and price is None:
        why_not = "no source gives the price of its GPU; give yours with --price"
    if why_not or price is None:
        note = f"Cost unknown: {why_not}."
    else:
        note = f"The cost is that of {gpus_text(ledger)} alone: {price_text(price)}."
    return _rate(
        replace(COST, on_request=own_price is None, note=note),
        None if why_not or price is None else price.cost_usd(1.0),
        ledger,
    )


def _energy_rate(ledger: Ledger) -> CostRate:
    chip = None if ledger.roofline is None else ledger.roofline.chip
    watts = chip.tdp_watts if chip else None
    why_not = why_no_time(ledger) or ("" if watts else "no source gives the power of its GPU")
    note = (
        f"Energy unknown: {why_not}."
        if why_not
        else f"Energy is estimated, of {gpus_text(ledger)} alone: by the mean power in "
        f"{ledger.period}."
    )
    return _rate(
        replace(ENERGY, note=note),
        None if why_not or watts is None else mean_power_watts(watts, busy_share(ledger)),
        ledger,
    )


def _rate(column: Column, of_one: float | None, ledger: Ledger) -> CostRate:
    return CostRate(column, None if of_one is None else of_one * ledger.trace.world.size)
