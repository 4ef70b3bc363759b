"""Money and energy of a training, from its time."""

from torchtally.chips import Chip
from torchtally.chips.power import mean_power_watts
from torchtally.plan.quantity import Quantity
from torchtally.plan.questions.request import Request
from torchtally.plan.training import chip_hours, cost_usd, energy_joules
from torchtally.units import Unit

OWN_PRICE = "yours"


def bill(request: Request, chips: Quantity, seconds: Quantity, chip: Chip) -> tuple[Quantity, ...]:
    """Chip-hours, and what they cost and draw as far as price and power are known."""
    hours, price = chip_hours(chips, seconds), price_of(request, chip)
    cost = () if price is None else (cost_usd(hours, price),)
    if chip.tdp_watts is None:
        return hours, *cost
    watts, source = mean_power_watts(chip.tdp_watts), chip.source_of("tdp_watts")
    power = Quantity(f"{chip.name} rated power", watts, Unit.WATTS, source=source)
    return hours, *cost, energy_joules(hours, power)


def price_of(request: Request, chip: Chip) -> Quantity | None:
    """The user's price of a chip for an hour, else the table's; None where both are unknown."""
    name = f"{chip.name} price"
    if request.usd_per_hour is not None:
        return Quantity(name, request.usd_per_hour, Unit.USD_PER_HOUR, note=OWN_PRICE)
    if chip.price is None:
        return None
    return Quantity(
        name,
        chip.price.usd_per_hour,
        Unit.USD_PER_HOUR,
        source=chip.price.source,
        note=chip.price.note,
    )


def unknown_costs(request: Request, chip: Chip) -> tuple[str, ...]:
    """What the bill leaves out, in words."""
    missing = []
    if price_of(request, chip) is None:
        missing.append(f"cost: price of the {chip.name} unknown; give one with --price 2.49")
    if chip.tdp_watts is None:
        missing.append(f"energy: rated power of the {chip.name} unknown")
    return tuple(missing)
