"""Programs that come with the package: steps of known models, written out without torch.

A file has the programs of one model type, with the sizes of every known model that has them. What
a program was recorded for is its key; another mode, regime or generation of chips is not in the
file, and is recorded (`models/planned.py`).
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from torchtally.chips import Chip
from torchtally.errors import ProgramError
from torchtally.programs.file import load_programs
from torchtally.programs.packed import PackedPrograms
from torchtally.programs.program import RunProgram
from torchtally.programs.regime import kernels_of, regime
from torchtally.programs.step import POSITIONS, SEQUENCE, AskedStep, StepModel, step
from torchtally.trace import Trace
from torchtally.trace.record import Record

FOLDER = Path(__file__).with_name("shipped")


class ShippedModel(Record, frozen=True):
    """A known model whose class has programs."""

    model: StepModel
    variant: str
    """Digest of its configuration without sizes."""


class ProgramKey(Record, frozen=True):
    """What a program was recorded for, besides its sizes."""

    variant: str
    mode: str
    """Options of the training, as text: "optimizer adamw, recipe bf16"."""
    kernels: str
    """The chips, by `kernels_of`."""
    regime: str


class ShippedPrograms(Record, frozen=True):
    """The programs of one model type."""

    releases: str
    """What they were recorded with: "torch 2.13.0, transformers 5.23.0"."""
    models: dict[str, ShippedModel]
    """By the names of the known models."""
    keys: tuple[ProgramKey, ...]
    packed: PackedPrograms

    def program(self, key: ProgramKey) -> RunProgram | None:
        """The program of this key; None where there is none."""
        return self.packed.program(self.keys.index(key)) if key in self.keys else None


def shipped_file(model_type: str) -> Path:
    return FOLDER / f"{model_type}.programs"


@lru_cache(maxsize=4)
def shipped_programs(model_type: str) -> ShippedPrograms | None:
    """The programs of a model type; None where none are shipped."""
    path = shipped_file(model_type)
    return load_programs(path, ShippedPrograms) if path.is_file() else None


def key_of(variant: str, mode: str, chip: Chip, sizes: Mapping[str, int]) -> ProgramKey:
    """The key of a step of a configuration at all these sizes."""
    return ProgramKey(variant, mode, kernels_of(chip, sizes), regime(sizes))


def shipped_step(model_type: str, name: str, asked: AskedStep) -> Trace | None:
    """The step of a known model; None where no shipped program is for it."""
    shipped = shipped_programs(model_type)
    model = None if shipped is None else shipped.models.get(name)
    if shipped is None or model is None:
        return None
    sizes = asked.sizes(model.model.sizes)
    if sizes[SEQUENCE] > sizes.get(POSITIONS, sizes[SEQUENCE]):
        return None
    program = shipped.program(key_of(model.variant, asked.mode, asked.chip, sizes))
    if program is None:
        return None
    source = f"{shipped.releases}, shipped with torchtally"
    try:
        return step(program, model.model, sizes, asked, source)
    except ProgramError:
        if asked.world.size == 1:
            raise
        return None  # ranks that do not divide a weight pad it
