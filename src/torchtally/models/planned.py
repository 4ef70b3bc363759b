"""A training step of a configuration, written out of recordings of its class."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.models.config_symbols import ConfigSymbols, symbols_of
from torchtally.models.recorded import BATCH, SEQUENCE, TrainingMode, recorded_training
from torchtally.models.sources import class_of_values
from torchtally.programs import LAYERS, write
from torchtally.trace import Note, Trace


@dataclass(frozen=True, slots=True)
class ConfiguredClass:
    """A class of transformers as a config.json describes it."""

    kind: Any
    symbols: ConfigSymbols
    library: str
    """"transformers 5.23.0"."""

    @property
    def name(self) -> str:
        return str(self.kind.__name__)

    def build(self, config: Any) -> nn.Module:
        """The class without memory."""
        with torch.device("meta"):
            model: nn.Module = self.kind(config)
        return model


def configured_class(values: Mapping[str, Any], place: str) -> ConfiguredClass:
    """The class that the keys of a config.json are for; `place` is where they are.

    Raises UsageError where it is none of transformers, and ProgramError where its layers are of
    several kinds.
    """
    if "model_type" not in values:
        raise UsageError(f"{place}: steps are written out for classes of transformers alone.")
    kind, config = class_of_values(dict(values), place)
    library = importlib.import_module("transformers")
    return ConfiguredClass(kind, symbols_of(config), f"transformers {library.__version__}")


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

    `command` is what a person typed: the name of the trace.
    """
    symbols = configured.symbols
    asked = {BATCH: batch, SEQUENCE: sequence}
    program = recorded_training(configured.build, symbols, asked, mode, chip)
    trace = write(program, {**symbols.sizes, **asked}, symbols.layers)
    note = Note(
        f"not a run: {symbols.layers} layers of {configured.name} ({configured.library}), written "
        f"out from a recording of {LAYERS} layers"
    )
    return replace(trace, script=command, notes=(note, *trace.notes))
