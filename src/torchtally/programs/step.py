"""A training step of a configuration, as it is asked for and as a program writes it."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from torchtally.chips import Chip
from torchtally.programs.parts import LAYERS
from torchtally.programs.program import RunProgram
from torchtally.programs.sizes import RANKS
from torchtally.programs.written import write
from torchtally.trace import Note, Trace, World
from torchtally.trace.record import Count, Record

ONE_GPU = World()
BATCH, SEQUENCE, POSITIONS = "batch", "sequence", "positions"
FULLY_SHARDED = "fsdp2"
"""How ranks share weights in a mode's text."""


def mode_text(**options: object) -> str:
    """How a step is trained, as text, by the options that say it; without those not given."""
    return ", ".join(f"{name} {value}" for name, value in sorted(options.items()) if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStep:
    """What is asked of a step, besides its model."""

    batch: int
    sequence: int | None
    """None: the usual one, or as long as the model has positions."""
    usual_sequence: int
    mode: str
    """How it is trained, as text: "optimizer adamw, recipe bf16"."""
    chip: Chip
    command: str
    """What a person typed: the name of the trace."""
    world: World = ONE_GPU
    """Ranks that share the weights, where there are several."""

    def length(self, positions: int | None) -> int:
        """The sequence of a model with so many positions."""
        longest = positions or self.usual_sequence
        return self.sequence or min(longest, self.usual_sequence)

    def sizes(self, own: Mapping[str, int]) -> dict[str, int]:
        """All sizes of the step, given the model's own."""
        sizes = {**own, BATCH: self.batch, SEQUENCE: self.length(own.get(POSITIONS))}
        return sizes if self.world.size == 1 else {**sizes, RANKS: self.world.size}


class StepModel(Record, frozen=True):
    """A configuration as a program takes it."""

    class_name: str
    sizes: dict[str, Count]
    layers: Count


def step(
    program: RunProgram, model: StepModel, sizes: Mapping[str, int], asked: AskedStep, source: str
) -> Trace:
    """The steps of a program at these sizes, on a chip that runs its operators.

    `source` is how and with which releases it was recorded.
    """
    recorded = replace(program, trace=replace(program.trace, chip=asked.chip.name))
    how = (
        f"{model.layers} layers of {model.class_name} ({source}), written out from a recording of "
        f"{LAYERS} layers"
    )
    return named(write(recorded, sizes, model.layers, asked.world), how, asked)


def named(trace: Trace, how: str, asked: AskedStep) -> Trace:
    """The trace under the command that asked for it, with how it was made."""
    note = Note(f"not a run of a script: {how}")
    return replace(trace, script=asked.command, notes=(note, *trace.notes))
