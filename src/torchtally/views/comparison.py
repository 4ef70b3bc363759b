"""Chips beside each other, from one trace: what the same step takes on each of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.ledger import Ledger
from torchtally.memory.allocator import replay
from torchtally.memory.workspace import context_bytes
from torchtally.table import Cell, Column, Table
from torchtally.timing.roofline import Roofline
from torchtally.units import Unit
from torchtally.views.money import (
    ENERGY_NOTE,
    FIRST_STEP_NOTE,
    Bill,
    Extent,
    Until,
    bill,
    dated,
    own_price_of,
    tokens_of_step,
    why_no_time,
    with_something,
)
from torchtally.views.step_time import calibrated_share
from torchtally.views.summary import known_chip
from torchtally.views.utilisation import PeakRate, model_flops, peak_of

THOUSAND_STEPS = Until(1000, Extent.STEPS)
"""Length of training for cost and energy by default: one step costs too little."""

TRACED = "*"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One chip and what was found for it. None: not known, and `missing` says why."""

    chip: str
    is_traced: bool
    step_s: float | None
    mfu: float | None
    mfu_of: str
    """The peak it is a share of."""
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
) -> Table:
    """The traced chip first, then the others in the order given.

    Args:
        ledger: timed for the chip that was traced.
        rooflines: the chips to compare with; one that is there already is left out.
        until: what cost and energy are of; by default of 1000 steps.
        own_prices: the user's, in USD per hour, by chip.

    Raises UsageError for `until` in tokens where a step's are not known.
    """
    length, prices = until or THOUSAND_STEPS, own_prices or {}
    others = {
        roofline.chip.name: roofline
        for roofline in rooflines
        if roofline.chip.name != ledger.trace.chip
    }
    ledgers = [ledger, *(ledger.timed(roofline) for roofline in others.values())]
    step = _step(ledger)
    candidates = [_candidate(step, variant, length, prices) for variant in ledgers]
    columns = COLUMNS if until is None else TRAINING_COLUMNS
    rows = [_row(candidate, candidates[0], columns) for candidate in candidates]
    return with_something(
        Table(
            title=f"Chips compared, with cost and energy of {length}",
            columns=columns,
            rows=tuple(rows),
            totals=(None,) * len(columns),
            note=" ".join(_remarks(ledger, candidates)),
        ),
        optional=("tokens_per_s", "calibrated_share", "missing"),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """What is the same on every chip."""

    ledger: Ledger
    """Of the traced chip."""
    model_flops: int
    tokens: int | None


def _step(ledger: Ledger) -> _Step:
    return _Step(ledger, model_flops(ledger.steady, ledger.convention), tokens_of_step(ledger))


def dominant_bound(ledger: Ledger) -> str:
    """What most of the step's time goes into."""
    times: Counter[str] = Counter()
    for entry in ledger.steady:
        slot = ledger.slot(entry)
        times[slot.bound] += slot.seconds  # type: ignore[assignment]
    return str(max(times, key=times.__getitem__, default=""))


def fits_on(ledger: Ledger, chip: Chip) -> tuple[bool | None, str]:
    """Whether the run fits a chip, by the allocator; and why that is not known."""
    memory, trace = ledger.memory, ledger.trace
    if chip.compute_capability is None:
        return None, "no verdict on memory: no allocator of it is modelled"
    left_bytes = chip.total_memory_bytes - context_bytes(chip.compute_capability)
    mine = (reserved.bytes for reserved in trace.reserved if reserved.device == memory.device)
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


def _candidate(step: _Step, ledger: Ledger, until: Until, prices: Mapping[str, float]) -> Candidate:
    """What is known of the step on the chip that this ledger was timed for."""
    traced, roofline = step.ledger, ledger.roofline
    chip = roofline.chip if roofline else known_chip(traced.trace.chip)
    own = own_price_of(chip, prices) if chip else None
    step_s = None if why_no_time(ledger) else ledger.total.seconds
    charge = bill(ledger, until, own, step.tokens)
    peak = peak_of(ledger, chip) if chip else None
    fits, why_no_fits = fits_on(traced, chip) if chip else (None, "")
    return Candidate(
        chip=chip.name if chip else traced.trace.chip,
        is_traced=ledger is traced,
        step_s=step_s,
        mfu=_share(step.model_flops, step_s, peak),
        mfu_of=peak.description if peak and peak.flop_per_s else "",
        bound=dominant_bound(ledger) if step_s else "",
        tokens_per_s=step.tokens / step_s if step.tokens and step_s else None,
        capacity_bytes=chip.total_memory_bytes if chip else None,
        fits=fits,
        calibrated_share=calibrated_share(ledger) if step_s else None,
        bill=charge,
        missing=tuple(
            reason for reason in (_why_no_mfu(peak, step_s), *charge.missing, why_no_fits) if reason
        ),
    )


def _share(flops: int, step_s: float | None, peak: PeakRate | None) -> float | None:
    """MFU: of what the chip would do in this time at its peak."""
    if step_s is None or peak is None or peak.flop_per_s is None:
        return None
    return flops / step_s / peak.flop_per_s


def _why_no_mfu(peak: PeakRate | None, step_s: float | None) -> str:
    """Empty where there is one, or where there is no time either."""
    if peak is None or step_s is None or peak.flop_per_s is not None:
        return ""
    if not peak.dtype:
        return "no MFU: the step has no products"
    return f"no MFU: no peak for {peak.dtype}, and its time is that of another dtype"


COLUMNS = (
    Column("chip", "chip", Unit.NAME),
    Column("traced", "", Unit.WORD),
    Column("step_s", "step", Unit.SECONDS),
    Column("relative", "relative", Unit.FRACTION, rank=2),
    Column("tokens_per_s", "tokens/s", Unit.COUNT, rank=3),
    Column("mfu", "MFU", Unit.FRACTION),
    Column("bound", "bound", Unit.WORD),
    Column("calibrated_share", "measured", Unit.FRACTION, rank=5),
    Column("capacity_bytes", "memory", Unit.BYTES, rank=4),
    Column("fits", "fits", Unit.WORD),
    Column("usd_per_hour", "per h", Unit.USD),
    Column("price_as_of", "priced", Unit.WORD, rank=3),
    Column("usd", "cost", Unit.USD),
    Column("energy_joules", "energy", Unit.JOULES, rank=1),
    Column("price_source", "price from", Unit.TEXT, rank=6),
    Column("missing", "not known", Unit.TEXT, rank=7),
)
TRAINING_COLUMNS = (
    *COLUMNS[:3],
    Column("seconds", "duration", Unit.SECONDS),
    *COLUMNS[3:-2],
    Column("steps", "steps", Unit.COUNT, rank=3),
    *COLUMNS[-2:],
)
"""Where somebody said how long."""


def _row(candidate: Candidate, traced: Candidate, columns: Iterable[Column]) -> tuple[Cell, ...]:
    price, lasting = candidate.bill.price, candidate.bill.training
    cells: dict[str, Cell] = {
        "chip": candidate.chip,
        "traced": TRACED if candidate.is_traced else "",
        "step_s": candidate.step_s,
        "relative": candidate.step_s / traced.step_s
        if candidate.step_s and traced.step_s
        else None,
        "tokens_per_s": round(candidate.tokens_per_s)
        if candidate.tokens_per_s is not None
        else None,
        "mfu": candidate.mfu,
        "bound": candidate.bound,
        "calibrated_share": candidate.calibrated_share,
        "capacity_bytes": candidate.capacity_bytes,
        "fits": {True: "yes", False: "no", None: ""}[candidate.fits],
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_as_of": dated(price),
        "usd": candidate.bill.cost_usd,
        "energy_joules": candidate.bill.energy_joules,
        "price_source": price.source if price else "",
        "missing": "; ".join(candidate.missing),
        "seconds": lasting.seconds if lasting else None,
        "steps": lasting.steps if lasting else None,
    }
    return tuple(cells[column.name] for column in columns)


def _remarks(ledger: Ledger, candidates: Sequence[Candidate]) -> Iterator[str]:
    """What a reader must know; first what is missing where there is "-"."""
    yield f"Time and MFU per {ledger.period}."
    for candidate in candidates:
        if candidate.missing:
            yield f"{candidate.chip}: {'; '.join(candidate.missing)}."
    yield (
        f"{TRACED}: the traced chip. The operators stay those chosen for it (attention's kernels, "
        "dtypes): for another architecture this is an estimate."
    )
    if len(ledger.trace.step_ends) == 1:
        yield FIRST_STEP_NOTE
    yield from _bases(candidates)
    peaks = dict.fromkeys(candidate.mfu_of for candidate in candidates if candidate.mfu is not None)
    if peaks:
        yield (
            f"MFU: products of the forward and backward pass, {ledger.convention.description}, "
            f"over the {' or the '.join(peaks)} peak."
        )
    yield from _prices(candidates)
    if any(candidate.bill.energy_joules is not None for candidate in candidates):
        yield ENERGY_NOTE


def _bases(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Which times are by the data sheet, and which were corrected by measurements."""
    for basis, is_calibrated in (("data sheet", False), ("calibration", True)):
        chips = [
            candidate.chip
            for candidate in candidates
            if candidate.step_s and bool(candidate.calibrated_share) == is_calibrated
        ]
        if chips:
            yield f"Times by {basis}: {', '.join(chips)}."


def _prices(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Each source once, with the chips it is of."""
    sources: dict[str, list[str]] = {}
    for candidate in candidates:
        if (price := candidate.bill.price) is not None:
            dated_source = f"{price.source}, {price.as_of}" if price.as_of else price.source
            sources.setdefault(dated_source, []).append(candidate.chip)
    if sources:
        said_by = "; ".join(f"{source} ({', '.join(chips)})" for source, chips in sources.items())
        yield f"Prices, each one offer: {said_by}."
