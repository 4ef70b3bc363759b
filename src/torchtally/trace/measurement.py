"""What was measured of one run of a script, on a GPU or a simulated one."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torchtally.trace.storage import Role

Json = dict[str, Any]

FORMAT = 1


class Held(StrEnum):
    """What a block at the peak is held for, as far as walking the optimizers can tell."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    REST = "rest"
    """Activations, temporaries, workspaces, buffers and batches."""


HELD_OF_ROLE = {
    Role.PARAMETER: Held.PARAMETERS,
    Role.GRADIENT: Held.GRADIENTS,
    Role.OPTIMIZER_STATE: Held.OPTIMIZER_STATE,
}

BACKWARD = "(backward pass)"
"""Stands for a file: allocated by autograd's thread, below no line of Python."""
ELSEWHERE = "(no line of yours)"
"""Stands for a file: below Python code, none of it the user's or a library's."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One training step. Peaks are those since the step before ended, by the history's blocks."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    """At its end, before gradients are dropped; by torch's own count, like the next one."""
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredLine:
    """Bytes held at the peak that were allocated below a line of the user's own."""

    file: str
    """Absolute, or `BACKWARD` or `ELSEWHERE` with line 0."""
    line: int
    text: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a script, on a GPU or on a simulated one."""

    device: str
    """As the driver calls it."""
    total_memory_bytes: int
    torch: str
    ending: str
    """As `record.Ending.kind`; "killed" for a process that ended without an answer, "not run"."""
    message: str
    exit_code: int
    peak_allocated_bytes: int
    """The larger of torch's own peak, which the script may reset, and the allocator history's."""
    peak_reserved_bytes: int
    peak_step: int
    """The training step in which most was allocated, counted from 1."""
    steps: tuple[MeasuredStep, ...]
    held: dict[str, int]
    """Bytes at the peak by `Held`, all of them. They sum to `peak_allocated_bytes`."""
    lines: tuple[MeasuredLine, ...]
    """At the peak, most bytes first. They sum to what the history explains of it."""
    output: str = ""
    """The last lines of what the script printed, where that was not shown."""

    @property
    def is_out_of_memory(self) -> bool:
        return self.ending == "exception" and "OutOfMemoryError" in self.message

    @property
    def failure(self) -> str:
        """Why the script failed, other than by memory; "" where it did not."""
        if self.is_out_of_memory or (self.ending in ("steps", "exit") and not self.exit_code):
            return ""
        return self.message or self.ending

    def to_json(self) -> Json:
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def from_json(document: Json) -> "Measurement":
        """Raises TypeError, KeyError or ValueError where the document is not a measurement."""
        if document["format"] != FORMAT:
            raise ValueError(f"expected a measurement of format {FORMAT}, got {document['format']}")
        facts = {name: value for name, value in document.items() if name != "format"}
        facts["steps"] = tuple(MeasuredStep(**step) for step in document["steps"])
        facts["lines"] = tuple(MeasuredLine(**line) for line in document["lines"])
        return Measurement(**facts)


def failed_measurement(ending: str, message: str, output: str = "") -> Measurement:
    """Measurement of a run that measured nothing."""
    none = dict.fromkeys(map(str, Held), 0)
    return Measurement("", 0, "", ending, message, 1, 0, 0, 0, (), none, (), output)
