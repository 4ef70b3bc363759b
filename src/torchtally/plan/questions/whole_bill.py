"""Money, energy and carbon of a whole training, and how they depend on what is rented."""

from typing import TYPE_CHECKING

from torchtally.chips import find_chip
from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.closed_form import Hours, Joules, Number, closed_form
from torchtally.plan.goodput.losses import joint_mtbf_s
from torchtally.plan.goodput.prices import ChipPrices, Prices
from torchtally.plan.goodput.rates import CARBON_SOURCE, carbon_regions
from torchtally.plan.quantity import Quantity, derive, of, total_s
from torchtally.plan.questions.bill import bill
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.whole_forms import CheckpointInterval
from torchtally.plan.training import chip_hours, cost_usd
from torchtally.table import Column, Table
from torchtally.units import Unit

if TYPE_CHECKING:
    from torchtally.plan.questions.whole_training import Whole


def paid_chips(request: Request) -> Quantity:
    """Chips of the training, and of nodes that are kept as spares."""
    if request.spares is None:
        return request.of_chips
    spare = request.spares * request.of_cluster.node_size
    return derive("chips", Unit.CHIPS, "chips + spare", chips=request.of_chips,
                  spare=of(spare, Unit.CHIPS).with_name("spare chips"))  # fmt: skip


def whole_bill(request: Request, seconds: Quantity) -> tuple[Quantity, ...]:
    """Chip-hours, dollars and energy of all of the time, and carbon of a region."""
    charges = bill(request, paid_chips(request), seconds, request.chip)
    if request.region is None and request.pue is None:
        return charges
    *others, energy = charges
    if energy.unit is not Unit.JOULES:
        raise UsageError(
            f"--region and --pue: the rated power of the {request.chip.name} is unknown."
        )
    if request.pue is not None:
        energy = energy_with_cooling_joules(energy, request.pue)
    charges = (*others, energy)
    if request.region is None:
        return charges
    grams = Quantity(
        f"{request.region}, g CO2e a kWh", carbon_regions()[request.region], Unit.NUMBER,
        source=CARBON_SOURCE,
    )  # fmt: skip
    carbon = derive("carbon in kg CO2e", Unit.NUMBER, "energy / 3.6e6 * grams / 1000",
                    "", "of the grid's mean", energy=energy, grams=grams)  # fmt: skip
    return (*charges, carbon)


def rented(request: Request, whole: "Whole", mtbf: Quantity | None) -> tuple[Table, ...]:
    """The training on demand, reserved and spot, by the user's prices."""
    if request.prices is None:
        return ()
    prices = prices_of(request.prices, request.chip.name)
    is_auto = request.checkpoint_every == CheckpointInterval()
    rows = []
    for kind in ("on_demand", "reserved", "spot"):
        price = getattr(prices, kind)
        if price is None:
            continue
        between, saved = mtbf, whole
        if kind == "spot":
            assert prices.spot_mtbf_hours is not None
            cluster = request.of_cluster
            nodes = -(-cluster.count // cluster.node_size)
            reclaimed = reclaimed_s(prices.spot_mtbf_hours, nodes)
            between = reclaimed if mtbf is None else joint_mtbf_s(mtbf, reclaimed)
            saved = whole.saved_for(between) if is_auto else whole
        seconds = total_s("whole training", **saved.causes(between))
        cost = cost_usd(chip_hours(paid_chips(request), seconds), price)
        rows.append((kind.replace("_", " "), price, seconds.value, cost.value))
    return (
        Table(
            title=f"By price, {request.prices.source} as of {request.prices.as_of}",
            columns=(
                Column("kind", "", Unit.NAME),
                Column("usd_per_hour", "a chip", Unit.USD_PER_HOUR),
                Column("seconds", "time", Unit.SECONDS),
                Column("cost_usd", "cost", Unit.USD),
            ),
            rows=tuple(rows),
            totals=(None,) * 4,
        ),
    )


def prices_of(prices: Prices, name: str) -> ChipPrices:
    """A chip's prices, under any of its own names. Raises UsageError where there are none."""
    tables = {chip.name if (chip := find_chip(key)) else key: key for key in prices.chips}
    if name not in tables:
        near = did_you_mean(name, tables)
        raise UsageError(f"--prices has no [chips.{name}]. {near}")
    return prices.chips[tables[name]]


@closed_form("energy", Unit.JOULES, "", "estimated: chips at rated power, by --pue")
def energy_with_cooling_joules(energy: Joules, pue: Number) -> str:
    """Energy with what cools and supplies the chips; hosts and network are not in it."""
    return "energy * pue"


@closed_form("mean time between reclaimed nodes", Unit.SECONDS)
def reclaimed_s(node_hours: Hours, nodes: Number) -> str:
    """Mean time of a job on so many spot nodes."""
    return "3600 * node_hours / nodes"
