"""A training step of a configuration, written out of recordings of its class."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from torchtally.chips import Chip
from torchtally.errors import ProgramError, UsageError
from torchtally.models.config_symbols import symbols_of
from torchtally.models.recorded import (
    BATCH,
    SEQUENCE,
    TrainingMode,
    exact_training,
    whole_training,
)
from torchtally.models.sources import class_of_values
from torchtally.programs import LAYERS, write
from torchtally.trace import Note, Trace


@dataclass(frozen=True, slots=True)
class ConfiguredClass:
    """A class of transformers as a config.json describes it."""

    kind: Any
    config: Any
    library: str
    """"transformers 5.23.0"."""

    @property
    def name(self) -> str:
        return str(self.kind.__name__)

    @property
    def positions(self) -> int | None:
        """The longest sequence; None where nothing says it."""
        return getattr(self.config, "max_position_embeddings", None)

    def build(self, config: Any) -> nn.Module:
        """The class without memory."""
        with torch.device("meta"):
            model: nn.Module = self.kind(config)
        return model


def configured_class(values: Mapping[str, Any], place: str) -> ConfiguredClass:
    """The class that the keys of a config.json are for; `place` is where they are.

    Raises UsageError where it is none of transformers.
    """
    if "model_type" not in values:
        raise UsageError(f"{place}: steps are written out for classes of transformers alone.")
    kind, config = class_of_values(dict(values), place)
    library = importlib.import_module("transformers")
    return ConfiguredClass(kind, config, f"transformers {library.__version__}")


def planned_step(
    configured: ConfiguredClass,
    *,
    batch: int,
    sequence: int,
    mode: TrainingMode,
    chip: Chip,
    command: str,
) -> Trace:
    """Two training steps at the class's own sizes, the second with the optimizer's state.

    Where its layers cannot be written out from three of them, all of them are run. `command` is
    what a person typed: the name of the trace.
    """
    asked = {BATCH: batch, SEQUENCE: sequence}
    try:
        symbols = symbols_of(configured.config)
        program = exact_training(configured.build, symbols, asked, mode, chip)
        trace = write(program, {**symbols.sizes, **asked}, symbols.layers)
        how = (
            f"{symbols.layers} layers of {configured.name} ({configured.library}), written out "
            f"from a recording of {LAYERS} layers"
        )
    except ProgramError as error:
        trace = whole_training(lambda: configured.build(configured.config), asked, mode, chip)
        reason = str(error).splitlines()[0]
        how = (
            f"{configured.name} ({configured.library}), run with all its layers, which cannot be "
            f"written out from {LAYERS} of them: {reason}"
        )
    note = Note(f"not a run of a script: {how}")
    return replace(trace, script=command, notes=(note, *trace.notes))
