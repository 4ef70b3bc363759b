"""Chips beside each other, from one trace: what the same step takes on each of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchtally.chips import Chip, Price, find_chip
from torchtally.ledger import Ledger
from torchtally.table import Cell, Column, Prose, Table, sentences
from torchtally.timing.roofline import Roofline
from torchtally.units import Unit
from torchtally.views.bottlenecks import dominant_bounds
from torchtally.views.communicators import communicator_buffers
from torchtally.views.money import (
    ENERGY_NOTE,
    FIRST_STEP_NOTE,
    THOUSAND_STEPS,
    Until,
    bill,
    check_length,
    own_price_of,
    price_date,
    tokens_of_step,
    why_no_time,
    with_something,
)
from torchtally.views.step_time import calibrated_share
from torchtally.views.summary import claim_on, fits_in, room_bytes
from torchtally.views.utilisation import PeakRate, model_flops, peak_of

"""Length of training for cost and energy by default: one step costs too little."""

TRACED = "*"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One chip and what was found for it."""

    cells: Mapping[str, Cell]
    """By the names of columns. None: not known, and `missing` says why."""
    mfu_of: str
    """The peak that the MFU is a share of."""
    price: Price | None
    missing: tuple[str, ...]

    @property
    def chip(self) -> str:
        return str(self.cells["chip"])


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

    Raises UsageError for `until` in tokens where a step's are not known, and in steps or tokens
    where the ledger is of several steps.
    """
    if until is not None:
        check_length(ledger, until)
    length, prices = until or THOUSAND_STEPS, own_prices or {}
    others = {
        roofline.chip.name: roofline
        for roofline in rooflines
        if roofline.chip.name != ledger.trace.chip
    }
    ledgers = [ledger, *(ledger.with_predicted_times(roofline) for roofline in others.values())]
    step = _step(ledger)
    candidates = [_candidate(step, variant, length, prices) for variant in ledgers]
    columns = COLUMNS if until is None else TRAINING_COLUMNS
    rows = (tuple(candidate.cells[column.name] for column in columns) for candidate in candidates)
    return with_something(
        Table(
            title=length.after("Chips compared, with cost and energy of "),
            columns=columns,
            rows=tuple(rows),
            note=sentences(*_remarks(ledger, candidates)),
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
    return _Step(ledger, model_flops(ledger.reported, ledger.convention), tokens_of_step(ledger))


def dominant_bound(ledger: Ledger) -> str:
    """What most of the step's time goes into; "" where it takes none."""
    return str(dominant_bounds(ledger, lambda entry: None).get(None, ""))


FITS = {"fits": "yes", "close": "close", "does not fit": "no"}


def fits_on(ledger: Ledger, chip: Chip) -> tuple[str, str]:
    """Whether the run fits a chip ("yes", "close", "no", or ""); and why that is not known."""
    if not chip.is_cuda:
        return "", "no verdict on memory: its allocator is not modelled"
    communicators = communicator_buffers(ledger, chip)
    is_open = ledger.trace.final_refusal is not None and chip.name != ledger.trace.chip
    if is_open and fits_in(ledger, room_bytes(chip) - communicators.bytes):
        return "", "no verdict on memory: the run ended in OOM; trace with --no-oom"
    return FITS[claim_on(ledger, chip, communicators)], ""


def _candidate(step: _Step, ledger: Ledger, until: Until, prices: Mapping[str, float]) -> Candidate:
    """What is known of the step on the chip that this ledger was timed for."""
    traced, roofline = step.ledger, ledger.roofline
    chip = roofline.chip if roofline else find_chip(traced.trace.chip)
    step_s, traced_s = _step_s(ledger), _step_s(traced)
    charge = bill(ledger, until, own_price_of(chip, prices) if chip else None, step.tokens)
    lasting, price = charge.training, charge.price
    peak = peak_of(ledger, chip) if chip else None
    fits, why_no_fits = fits_on(traced, chip) if chip else ("", "")
    reasons = (_why_no_mfu(peak, step_s), *charge.missing, why_no_fits)
    missing = tuple(reason for reason in reasons if reason)
    cells: dict[str, Cell] = {
        "chip": chip.name if chip else traced.trace.chip,
        "traced": TRACED if ledger is traced else "",
        "step_s": step_s,
        "relative": step_s / traced_s if step_s and traced_s else None,
        "tokens_per_s": round(step.tokens / step_s) if step.tokens and step_s else None,
        "mfu": _share(step.model_flops, step_s, peak),
        "bound": dominant_bound(ledger) if step_s else "",
        "calibrated_share": calibrated_share(ledger) if step_s else None,
        "capacity_bytes": chip.total_memory_bytes if chip else None,
        "fits": fits,
        "usd_per_hour": price.usd_per_hour if price else None,
        "price_as_of": price_date(price),
        "cost_usd": charge.cost_usd,
        "energy_joules": charge.energy_joules,
        "price_source": price.source if price else "",
        "missing": "; ".join(missing),
        "seconds": lasting.seconds if lasting else None,
        "steps": lasting.steps if lasting else None,
    }
    return Candidate(cells, peak.description if peak and peak.flop_per_s else "", price, missing)


def _step_s(ledger: Ledger) -> float | None:
    return None if why_no_time(ledger) else ledger.total.seconds


def _share(flops: int, step_s: float | None, peak: PeakRate | None) -> float | None:
    """MFU: of what the chip would do in this time at its peak."""
    if step_s is None or peak is None or peak.flop_per_s is None:
        return None
    return flops * peak.counted_share / step_s / peak.flop_per_s


def _why_no_mfu(peak: PeakRate | None, step_s: float | None) -> str:
    """Empty where there is one, or where there is no time either."""
    if peak is None or step_s is None or peak.flop_per_s is not None:
        return ""
    if not peak.dtype:
        return "no MFU: the step has no products"
    return f"no MFU: no peak for {peak.dtype}, which is timed as another dtype"


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
    Column("cost_usd", "cost", Unit.USD),
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


def _remarks(ledger: Ledger, candidates: Sequence[Candidate]) -> Iterator[Prose]:
    """What a reader must know; first what is missing where there is "-"."""
    yield f"Time and MFU per {ledger.period}."
    for candidate in candidates:
        if candidate.missing:
            yield f"{candidate.chip}: {'; '.join(candidate.missing)}."
    yield (
        f"{TRACED}: the traced chip. The operators chosen for it (attention kernels, dtypes) are "
        "kept: for another architecture this is an estimate."
    )
    if len(ledger.trace.step_ends) == 1:
        yield FIRST_STEP_NOTE
    yield from _bases(candidates)
    peaks = dict.fromkeys(
        candidate.mfu_of for candidate in candidates if candidate.cells["mfu"] is not None
    )
    if peaks:
        yield (
            f"MFU: products of the forward and backward pass, {ledger.convention.description}, "
            f"over the {' or the '.join(peaks)} peak."
        )
    yield from _prices(candidates)
    if any(candidate.cells["energy_joules"] is not None for candidate in candidates):
        yield ENERGY_NOTE


def _bases(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Which times are by the data sheet, and which were corrected by measurements."""
    for basis, is_calibrated in (("data sheet", False), ("calibration", True)):
        chips = [
            candidate.chip
            for candidate in candidates
            if candidate.cells["step_s"]
            and bool(candidate.cells["calibrated_share"]) == is_calibrated
        ]
        if chips:
            yield f"Times by {basis}: {', '.join(chips)}."


def _prices(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Each source once, with the chips it is of."""
    sources: dict[str, list[str]] = {}
    for candidate in candidates:
        if (price := candidate.price) is not None:
            dated_source = f"{price.source}, {price.as_of}" if price.as_of else price.source
            if len(price.offers) > 1:
                dated_source = price.note
            sources.setdefault(dated_source, []).append(candidate.chip)
    if sources:
        said_by = "; ".join(f"{source} ({', '.join(chips)})" for source, chips in sources.items())
        yield f"Prices (`tally gpus CHIP` lists offers): {said_by}."
