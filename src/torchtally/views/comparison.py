"""Chips beside each other, from one trace: what the same step takes on each of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchtally.allocator import replay
from torchtally.calibration.features import is_tf32
from torchtally.errors import UsageError
from torchtally.hardware import Chip
from torchtally.ledger import Ledger, account
from torchtally.record import Phase
from torchtally.roofline import Roofline
from torchtally.views.money import (
    ENERGY_NOTE,
    Bill,
    Extent,
    Until,
    bill,
    own_price_of,
    said,
    why_no_time,
)
from torchtally.views.summary import known_chip
from torchtally.views.table import Cell, Column, Table, Unit
from torchtally.workspace import context_bytes

THOUSAND_STEPS = Until(1000, Extent.STEPS)
"""What cost and energy are of where nobody said how long: one step costs too little to print."""

TRACED = "*"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One chip and what was found for it. None: not known, and `missing` says why."""

    chip: str
    is_traced: bool
    step_s: float | None
    mfu: float | None
    bound: str
    """What most of the step's time goes into; "" where there is no time."""
    tokens_per_s: float | None
    capacity_bytes: int | None
    fits: bool | None
    calibrated_share: float | None
    """Of the time at work: of operators that were corrected by measurements of this chip."""
    bill: Bill
    missing: tuple[str, ...]


def comparison(
    ledger: Ledger,
    rooflines: Sequence[Roofline],
    *,
    until: Until | None = None,
    own_prices: Mapping[str, float] | None = None,
    tokens_per_step: int | None = None,
) -> Table:
    """The traced chip first, then the others in the order given.

    Args:
        ledger: timed for the chip that was traced.
        rooflines: the chips to compare with; one that is there already is left out.
        until: what cost and energy are of; by default of 1000 steps.
        own_prices: the user's, in USD per hour, by chip.
        tokens_per_step: what a step trains on, where it is known.

    Raises UsageError for `until` in tokens where a step's are not known.
    """
    dtype = main_dtype(ledger)
    length, prices = until or THOUSAND_STEPS, own_prices or {}
    others = {it.chip.name: it for it in rooflines if it.chip.name != ledger.trace.chip}
    ledgers = [ledger, *(timed_on(ledger, it) for it in others.values())]
    found = [_candidate(ledger, it, dtype, length, prices, tokens_per_step) for it in ledgers]
    columns = [it for it in COLUMNS if it.name != "tokens_per_s" or tokens_per_step]
    if until is not None:
        columns[-2:-2] = LENGTH_COLUMNS
    return Table(
        title=f"Chips compared by {ledger.period}; cost and energy of {_of(until)}",
        columns=tuple(columns),
        rows=tuple(_row(it, found[0], columns) for it in found),
        totals=(None,) * len(columns),
        note=" ".join(_remarks(ledger, found, dtype)),
    )


def timed_on(ledger: Ledger, roofline: Roofline) -> Ledger:
    """The same trace, timed on another chip. Of its memory nothing: time does not depend on it."""
    trace = replace(ledger.trace, storages=(), reserved=(), emptied=())
    return account(trace, convention=ledger.attention, roofline=roofline)


def main_dtype(ledger: Ledger) -> str | None:
    """In which most FLOPs of products, attention and convolutions ran; "tf32" where allowed.

    None where the step has none.
    """
    flops: Counter[str] = Counter()
    for it in ledger.steady:
        if it.kind.is_matmul and it.op.call.inputs:
            dtype = "tf32" if is_tf32(it.op.call) else it.op.call.inputs[0].dtype
            flops[dtype] += it.cost.flops
    return max(flops, key=flops.__getitem__, default=None)


def model_flops(ledger: Ledger) -> int:
    """FLOPs of products, attention and convolutions, forward and backward: without recomputation.

    The numerator of MFU as in PaLM (arXiv 2204.02311, appendix B).
    """
    return sum(
        it.cost.flops
        for it in ledger.steady
        if it.kind.is_matmul and it.op.phase in (Phase.FORWARD, Phase.BACKWARD)
    )


def dominant_bound(ledger: Ledger) -> str:
    """What most of the step's time goes into."""
    times = {str(bound): it.seconds for bound, it in ledger.by_bound().items()}
    return max(times, key=times.__getitem__, default="")


def calibrated_share(ledger: Ledger) -> float | None:
    """Of the time at work; None where the device does no work."""
    slots = [it.slot for it in ledger.steady]
    whole_s = sum(it.kernel_s for it in slots)
    measured_s = sum(it.kernel_s for it in slots if it.is_calibrated)
    return measured_s / whole_s if whole_s > 0 else None


def fits_on(ledger: Ledger, chip: Chip) -> tuple[bool | None, str]:
    """Whether the run fits a chip, by the allocator; and why that is not known."""
    memory, trace = ledger.memory, ledger.trace
    if chip.compute_capability is None:
        return None, "no verdict on memory: no allocator of it is modelled"
    left_bytes = chip.total_memory_bytes - context_bytes(chip.compute_capability)
    mine = (it.bytes for it in trace.reserved if it.device == memory.device)
    reserved_bytes = max(mine, default=memory.peak_bytes)
    fits = memory.peak_bytes <= left_bytes and (
        reserved_bytes <= left_bytes
        # Cached segments can be given back: what was reserved need not have been.
        or replay(trace, device=memory.device, capacity_bytes=left_bytes).fits
    )
    if trace.final_refusal is not None and fits:
        if chip.name == trace.chip:
            return False, ""
        return None, "no verdict on memory: the run ended out of it; trace with --no-oom"
    return fits, ""


def _candidate(
    traced: Ledger,
    ledger: Ledger,
    dtype: str | None,
    until: Until,
    prices: Mapping[str, float],
    tokens_per_step: int | None,
) -> Candidate:
    roofline = ledger.roofline
    chip = roofline.chip if roofline else known_chip(traced.trace.chip)
    own = own_price_of(chip, prices) if chip else None
    step_s = None if why_no_time(ledger) else ledger.total.seconds
    found = bill(ledger, until, own, tokens_per_step)
    mfu, why_no_mfu = (None, "") if step_s is None else _mfu(ledger, step_s, dtype)
    fits, why_no_fits = fits_on(traced, chip) if chip else (None, "")
    return Candidate(
        chip=chip.name if chip else traced.trace.chip,
        is_traced=ledger is traced,
        step_s=step_s,
        mfu=mfu,
        bound=dominant_bound(ledger) if step_s else "",
        tokens_per_s=tokens_per_step / step_s if tokens_per_step and step_s else None,
        capacity_bytes=chip.total_memory_bytes if chip else None,
        fits=fits,
        calibrated_share=calibrated_share(ledger) if step_s else None,
        bill=found,
        missing=tuple(it for it in (why_no_mfu, *found.missing, why_no_fits) if it),
    )


def _mfu(ledger: Ledger, step_s: float, dtype: str | None) -> tuple[float | None, str]:
    """The share of the dense peak, and why it is not known."""
    if dtype is None or ledger.roofline is None:
        return None, "no MFU: the step multiplies nothing"
    chip = ledger.roofline.chip
    try:
        peak_flop_per_s = chip.peak_flop_per_s(dtype)
    except UsageError:
        return None, f"no MFU: it has no peak for {dtype}, and its time is that of another dtype"
    return model_flops(ledger) / step_s / peak_flop_per_s, ""


COLUMNS = (
    Column("chip", "chip", Unit.NAME),
    Column("traced", "", Unit.WORD),
    Column("step_s", "step", Unit.SECONDS),
    Column("relative", "relative", Unit.FRACTION, rank=1),
    Column("tokens_per_s", "tokens/s", Unit.COUNT, rank=3),
    Column("mfu", "MFU", Unit.FRACTION),
    Column("bound", "bound", Unit.WORD),
    Column("calibrated_share", "measured", Unit.FRACTION, rank=5),
    Column("capacity_bytes", "memory", Unit.BYTES, rank=4),
    Column("fits", "fits", Unit.WORD),
    Column("usd_per_hour", "per h", Unit.USD),
    Column("price_as_of", "priced", Unit.WORD),
    Column("usd", "cost", Unit.USD),
    Column("energy_joules", "energy", Unit.JOULES, rank=2),
    Column("price_source", "price from", Unit.TEXT, rank=6),
    Column("missing", "not known", Unit.TEXT, rank=7),
)
LENGTH_COLUMNS = (
    Column("seconds", "duration", Unit.SECONDS, rank=1),
    Column("steps", "steps", Unit.COUNT, rank=3),
)
"""Where somebody said how long."""


def _row(found: Candidate, traced: Candidate, columns: Iterable[Column]) -> tuple[Cell, ...]:
    price, lasting = found.bill.price, found.bill.training
    cells: dict[str, Cell] = {
        "chip": found.chip,
        "traced": TRACED if found.is_traced else "",
        "step_s": found.step_s,
        "relative": found.step_s / traced.step_s if found.step_s and traced.step_s else None,
        "tokens_per_s": round(found.tokens_per_s) if found.tokens_per_s is not None else None,
        "mfu": found.mfu,
        "bound": found.bound,
        "calibrated_share": found.calibrated_share,
        "capacity_bytes": found.capacity_bytes,
        "fits": {True: "yes", False: "no", None: ""}[found.fits],
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_as_of": price.as_of or price.source if price else "",
        "usd": found.bill.cost_usd,
        "energy_joules": found.bill.energy_joules,
        "price_source": price.source if price else "",
        "missing": "; ".join(found.missing),
        "seconds": lasting.seconds if lasting else None,
        "steps": lasting.steps if lasting else None,
    }
    return tuple(cells[it.name] for it in columns)


def _of(until: Until | None) -> str:
    return "1000 steps" if until is None else str(until)


def _remarks(ledger: Ledger, found: Sequence[Candidate], dtype: str | None) -> Iterator[str]:
    """What a reader must know; first what is missing where there is "-"."""
    for it in found:
        if it.missing:
            yield f"{it.chip}: {'; '.join(it.missing)}."
    yield (
        f"{TRACED}: the chip it was traced for. The operators stay those that were chosen for it "
        "(attention's kernels, dtypes), so for other architectures this is an estimate."
    )
    yield from _bases(found)
    if dtype is not None:
        yield (
            "MFU: FLOPs of products, attention and convolutions, forward and backward, without "
            f"recomputation, {ledger.attention.description}, over the dense {dtype} peak."
        )
    yield from _prices(found)
    if any(it.bill.energy_joules is not None for it in found):
        yield ENERGY_NOTE


def _bases(found: Sequence[Candidate]) -> Iterator[str]:
    """Which times are by the data sheet, and which were corrected by measurements."""
    by_data_sheet = [it.chip for it in found if it.step_s and not it.calibrated_share]
    calibrated = [it.chip for it in found if it.step_s and it.calibrated_share]
    if by_data_sheet:
        yield f"Times by data sheet: {', '.join(by_data_sheet)}."
    if calibrated:
        yield f"Times corrected by measurements: {', '.join(calibrated)}."


def _prices(found: Sequence[Candidate]) -> Iterator[str]:
    """Each source once, with the chips it is of."""
    sources: dict[str, list[str]] = {}
    for it in found:
        if it.bill.price is not None:
            sources.setdefault(said(it.bill.price), []).append(it.chip)
    if sources:
        said_by = "; ".join(f"{', '.join(chips)}: {source}" for source, chips in sources.items())
        yield f"Prices, each of one offer: {said_by}."
