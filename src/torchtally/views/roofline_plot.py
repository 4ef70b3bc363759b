"""The roofline plot of a training step: how far each operator is from what the chip allows.

An operator stands at its arithmetic intensity (FLOPs for each byte moved to or from the device's
memory) and at the FLOP/s that its kernels are predicted to reach. The roof is what the chip allows
there: intensity times bandwidth, and no more than the peak of a dtype.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchtally.errors import UsageError
from torchtally.ledger import Entry, Ledger, Line, line_of
from torchtally.timing.calibration.features import is_tf32
from torchtally.timing.roofline import Bound, Roofline
from torchtally.timing.roofline.rates import peak_of
from torchtally.timing.slots import Slot
from torchtally.trace import Call
from torchtally.units import Unit
from torchtally.views.lines import line_texts, root_of
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot, Scale, span

LETTERS = "ABCDEFGH"
"""Of the operators that take most of the time, one each."""
LEAST_SHARE = 1e-3
"""Of the step's time: what takes less is not drawn, for it would stretch the axes."""
SERIES = tuple(Bound)
"""Bounds in the order of their colours."""


@dataclass(slots=True)
class CallGroup:
    """Operators of one step that were called alike."""

    call: Call
    count: int = 0
    flops: int = 0
    bytes: int = 0
    kernel_s: float = 0.0
    is_matmul: bool = False
    bounds: Counter[Bound] = field(default_factory=Counter)
    """Seconds by bound, and by line."""
    lines: Counter[Line | None] = field(default_factory=Counter)

    def add(self, entry: Entry, slot: Slot) -> None:
        self.count += 1
        self.flops += entry.cost.flops
        self.bytes += entry.cost.bytes
        self.kernel_s += slot.kernel_s
        self.is_matmul = entry.kind.is_matmul
        self.bounds[slot.bound] += slot.kernel_s  # type: ignore[assignment]
        self.lines[line_of(entry)] += slot.kernel_s  # type: ignore[assignment]

    @property
    def has_place(self) -> bool:
        """Zero has no place on a logarithmic axis."""
        return self.flops > 0 and self.bytes > 0


def roofline_plot(ledger: Ledger) -> Plot:
    """The reported period's operators below the roof of the chip that they are timed for.

    Raises UsageError for a ledger without times.
    """
    roofline, step_s = ledger.roofline, ledger.total.seconds
    if roofline is None:
        raise UsageError(
            f"No roofline of {ledger.trace.chip}: it is not in the chip table, or is a CPU that "
            "has not been measured.\n"
            "`tally gpus` lists the chips; `tally bench` measures a CPU."
        )
    groups = sorted(_groups(ledger), key=lambda group: -group.kernel_s)
    placed = [group for group in groups if group.has_place]
    drawn = [group for group in placed if group.kernel_s >= LEAST_SHARE * step_s] or placed[:1]
    marks = tuple(_marks(drawn, step_s))
    promised, achieved = _published_roof(roofline, groups), _achieved_roof(roofline, groups)
    roofs = [roof for roof in (promised, achieved) if roof is not None]
    ridges = (2 * ridge for roof in roofs for ridge in roof.ridges)
    peaks = (peak for roof in roofs for peak in roof.peaks.values())
    x_low, x_high = span([*(mark.x for mark in marks), *ridges])
    y_low, y_high = span([*(mark.y for mark in marks), *peaks])
    return Plot(
        title=f"Roofline of {roofline.chip.name}, {ledger.period}",
        x=Axis("arithmetic intensity", Scale.FLOPS_PER_BYTE, x_low, x_high),
        y=Axis("speed", Scale.FLOP_PER_S, y_low, y_high),
        series_title="bound",
        series=tuple(map(str, SERIES)),
        curves=tuple(curve for roof in roofs for curve in roof.curves(x_low, x_high)),
        marks=marks,
        listed=tuple(mark for mark in marks if mark.symbol),
        left_out=tuple(_left_out(groups, drawn, ledger)),
        note=_note(ledger, drawn, roofline.chip.memory_bandwidth_bytes_per_s),
    )


def _groups(ledger: Ledger) -> Iterable[CallGroup]:
    """Groups by call. Most operators share theirs, so few have to be compared."""
    groups: dict[Call, CallGroup] = {}
    known: dict[int, CallGroup] = {}
    for entry in ledger.reported:
        slot = ledger.slot(entry)
        if slot.kernel_s > 0:
            number = entry.op.call
            if number not in known:
                known[number] = groups.setdefault(entry.call, CallGroup(entry.call))
            known[number].add(entry, slot)
    return groups.values()


def _marks(groups: Sequence[CallGroup], step_s: float) -> Iterator[Mark]:
    root = root_of(line for group in groups for line in group.lines)
    letters = LETTERS.ljust(len(groups))
    for group, letter in zip(groups, letters, strict=False):
        place = str(line_texts(group.lines.most_common(1)[0][0], root)[0])
        others = len(group.lines) - 1
        yield Mark(
            x=group.flops / group.bytes,
            y=group.flops / group.kernel_s,
            symbol=letter.strip(),
            series=SERIES.index(group.bounds.most_common(1)[0][0]),
            weight=group.kernel_s / step_s,
            name=group.call.name,
            detail=f"{group.count} x {operands(group.call)}",
            place=f"{place} +{others}" if others else place,
        )


def operands(call: Call) -> str:
    """The call's first tensors as a reader knows them: "(16384, 768) (768, 3072) bfloat16"."""
    specs = call.inputs[:3] or call.outputs[:1]
    shapes = " ".join(f"({', '.join(map(str, spec.shape))})" for spec in specs)
    return f"{shapes} {dtype_of(call)}"


def dtype_of(call: Call) -> str:
    """What the call computes in, spelled as peaks are."""
    if is_tf32(call):
        return "tf32"
    specs = call.inputs or call.outputs
    floats = (spec.dtype for spec in specs if "float" in spec.dtype or "complex" in spec.dtype)
    return next(floats, specs[0].dtype if specs else "")


@dataclass(frozen=True, slots=True)
class Roof:
    """What a chip allows at any intensity."""

    bandwidth_bytes_per_s: float
    peaks: Mapping[str, float]
    """FLOP/s by the names of dtypes, the highest first."""
    basis: Basis
    has_bandwidth: bool = True
    """Somebody says what the bandwidth is: else it is another roof's, and not drawn again."""

    @property
    def ridges(self) -> tuple[float, ...]:
        """The intensity above which memory is not the limit, for each peak."""
        return tuple(peak / self.bandwidth_bytes_per_s for peak in self.peaks.values())

    def curves(self, x_low: float, x_high: float) -> Iterator[Curve]:
        """The slope up to the highest ridge, and a ceiling from each ridge on."""
        bandwidth = self.bandwidth_bytes_per_s
        top = max(self.ridges, default=x_high)
        if self.has_bandwidth:
            slope = ((x_low, bandwidth * x_low), (top, bandwidth * top))
            yield Curve("memory", bandwidth, Unit.BYTE_PER_S, slope, self.basis)
        for (name, peak), ridge in zip(self.peaks.items(), self.ridges, strict=True):
            ceiling = ((ridge, peak), (x_high, peak))
            yield Curve(name, peak, Unit.FLOP_PER_S, ceiling, self.basis)


def _published_roof(roofline: Roofline, groups: Iterable[CallGroup]) -> Roof | None:
    """None for a CPU, which has no data sheet peak."""
    if roofline.is_host:
        return None
    chip = roofline.chip
    peaks = {dtype: peak_of(dtype, chip).flop_per_s for dtype in _dtypes(roofline, groups)}
    return Roof(chip.memory_bandwidth_bytes_per_s, _by_rate(peaks), Basis.PROMISED)


def _achieved_roof(roofline: Roofline, groups: Iterable[CallGroup]) -> Roof | None:
    """Roof as measured here, else as published; None where neither is known."""
    chip, measured = roofline.chip, roofline.calibration
    published = {
        dtype: peak_of(dtype, chip).achieved_flop_per_s for dtype in _dtypes(roofline, groups)
    }
    bandwidth = chip.achieved_bandwidth_bytes_per_s
    if measured is not None:
        published |= {dtype: measured.peak_flop_per_s.get(dtype) for dtype in published}
        bandwidth = measured.bandwidth_bytes_per_s
    peaks = _by_rate({dtype: rate for dtype, rate in published.items() if rate is not None})
    if not peaks and bandwidth is None:
        return None
    promised = chip.memory_bandwidth_bytes_per_s
    return Roof(bandwidth or promised, peaks, Basis.ACHIEVED, has_bandwidth=bandwidth is not None)


def _by_rate(peaks: Mapping[str, float]) -> dict[str, float]:
    """Highest first; dtypes of one rate under one name."""
    names: dict[float, list[str]] = {}
    for dtype, rate in sorted(peaks.items(), key=lambda item: (-item[1], item[0])):
        names.setdefault(rate, []).append(dtype)
    return {", ".join(dtypes): rate for rate, dtypes in names.items()}


def _dtypes(roofline: Roofline, groups: Iterable[CallGroup]) -> list[str]:
    """Dtypes of the step's products that the chip has a rate for; of a step without any,
    float32.
    """
    used = dict.fromkeys(dtype_of(group.call) for group in groups if group.is_matmul)
    return [dtype for dtype in used or ("float32",) if _has_peak(dtype, roofline)]


def _has_peak(dtype: str, roofline: Roofline) -> bool:
    try:
        peak_of(dtype, roofline.chip)
    except UsageError:
        return False
    return True


def _left_out(
    groups: Sequence[CallGroup], drawn: Sequence[CallGroup], ledger: Ledger
) -> Iterator[tuple[str, float]]:
    """What has no mark, as shares of the step's time."""
    step_s = ledger.total.seconds
    if not step_s:
        return
    kept = set(map(id, drawn))
    without_s = sum(group.kernel_s for group in groups if not group.has_place)
    short_s = sum(group.kernel_s for group in groups if group.has_place and id(group) not in kept)
    idle_s = step_s - ledger.total.kernel_s
    is_host = ledger.roofline is not None and ledger.roofline.is_host
    for name, seconds in (
        ("operators without FLOPs", without_s),
        ("operators of less than 0.1 % each", short_s),
        ("issuing operators" if is_host else "the device idle", idle_s),
    ):
        if seconds > 1e-9 * step_s:
            yield name, seconds / step_s


def _note(ledger: Ledger, drawn: Iterable[CallGroup], bytes_per_s: float) -> str:
    causal = any(group.call.literal("is_causal") is True for group in drawn)
    notes = []
    if causal and str(ledger.convention) == "full":
        notes.append(
            "Causal attention is counted in full, and may stand above the roof: "
            "half of it is not computed."
        )
    if any(group.bytes > group.kernel_s * bytes_per_s for group in drawn):
        notes.append("What finds its operands in the L2 cache may stand above the roof.")
    return " ".join(notes)
