"""A prediction beside what was measured: pure, from two measurements. No torch."""

from dataclasses import dataclass
from enum import Enum

from torchtally.trace.measurement import Held, MeasuredLine, MeasuredStep, Measurement


@dataclass(frozen=True, slots=True)
class Pair:
    """The same quantity, measured and predicted, in bytes."""

    measured_bytes: int
    predicted_bytes: int

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None where nothing was measured."""
        return self.predicted_bytes / self.measured_bytes if self.measured_bytes else None

    @property
    def off_bytes(self) -> int:
        return self.predicted_bytes - self.measured_bytes

    def is_within(self, tolerance: float) -> bool:
        """Whether it is off by at most this share of what was measured."""
        return abs(self.off_bytes) <= tolerance * self.measured_bytes


Peaks = Measurement | MeasuredStep


def peaks(measured: Peaks, predicted: Peaks) -> tuple[Pair, Pair]:
    """Pairs of allocated and of reserved bytes."""
    return (
        Pair(measured.peak_allocated_bytes, predicted.peak_allocated_bytes),
        Pair(measured.peak_reserved_bytes, predicted.peak_reserved_bytes),
    )


class AuditVerdict(Enum):
    """What comes of it, and the exit code of the command."""

    WITHIN = 0
    OUTSIDE = 1
    FAILED = 2
    """The script failed: nothing to compare."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of a script side by side."""

    measured: Measurement
    predicted: Measurement
    tolerance: float
    """Of peak allocated bytes, as a share of one."""
    reserved_tolerance: float

    @property
    def allocated(self) -> Pair:
        return peaks(self.measured, self.predicted)[0]

    @property
    def reserved(self) -> Pair:
        return peaks(self.measured, self.predicted)[1]

    @property
    def steps(self) -> tuple[tuple[Pair, Pair], ...]:
        """Peaks allocated and reserved, of the steps that both runs completed."""
        return tuple(map(peaks, self.measured.steps, self.predicted.steps))

    @property
    def held(self) -> tuple[tuple[Held, Pair], ...]:
        """Pairs at the peak, by what is held."""
        ours, theirs = self.measured.held, self.predicted.held
        return tuple((held_for, Pair(ours[held_for], theirs[held_for])) for held_for in Held)

    @property
    def lines(self) -> tuple[tuple[MeasuredLine, Pair], ...]:
        """Pairs at the peak: the lines of either run, most bytes first."""
        ours = {(line.file, line.line): line for line in self.measured.lines}
        theirs = {(line.file, line.line): line for line in self.predicted.lines}
        nothing = MeasuredLine("", 0, "", 0)
        pairs = [
            (line, Pair(ours.get(place, nothing).bytes, theirs.get(place, nothing).bytes))
            for place, line in (ours | theirs | ours).items()
        ]
        return tuple(
            sorted(pairs, key=lambda pair: -max(pair[1].measured_bytes, pair[1].predicted_bytes))
        )

    @property
    def unexplained(self) -> Pair:
        """Share of the peaks that no line of the history explains."""
        ours = sum(line.bytes for line in self.measured.lines)
        theirs = sum(line.bytes for line in self.predicted.lines)
        return Pair(
            self.measured.peak_allocated_bytes - ours, self.predicted.peak_allocated_bytes - theirs
        )

    @property
    def failure(self) -> str:
        """Failure of the script, other than by memory, and its line; "" where it did not fail."""
        if self.measured.failure:
            return f"On the GPU: {self.measured.failure}"
        if self.predicted.failure:
            return f"On the simulated GPU, and not on the real one: {self.predicted.failure}"
        runs = (self.measured, self.predicted)
        if not any(run.peak_reserved_bytes or run.is_out_of_memory for run in runs):
            return "It put nothing on the GPU."
        return ""

    @property
    def disagreements(self) -> tuple[str, ...]:
        """What is outside of the tolerances, in words; empty where all is within."""
        ours, theirs = self.measured, self.predicted
        disagreements = []
        if ours.is_out_of_memory != theirs.is_out_of_memory:
            where = "on the GPU" if ours.is_out_of_memory else "on the simulated GPU"
            disagreements.append(f"it ran out of memory {where} alone")
        if len(ours.steps) != len(theirs.steps):
            counts = f"{len(ours.steps)} on the GPU, {len(theirs.steps)} simulated"
            disagreements.append(f"training steps: {counts}")
        if not self.allocated.is_within(self.tolerance):
            disagreements.append("peak allocated is off by more than its tolerance")
        if not self.reserved.is_within(self.reserved_tolerance):
            disagreements.append("peak reserved is off by more than its tolerance")
        return tuple(disagreements)

    @property
    def verdict(self) -> AuditVerdict:
        if self.failure:
            return AuditVerdict.FAILED
        return AuditVerdict.OUTSIDE if self.disagreements else AuditVerdict.WITHIN
