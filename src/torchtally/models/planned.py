"""A training step of a configuration, written out of recordings of its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchtally.chips import Chip
from torchtally.errors import ProgramError, UsageError
from torchtally.models.config_symbols import PLAIN, POSITIONS, key_of, symbols_of
from torchtally.models.recorded import RecordedMode, exact_training, whole_training
from torchtally.models.sources import class_of_values
from torchtally.programs import LAYERS
from torchtally.programs.cached import keep_program, keep_trace, releases
from torchtally.programs.step import BATCH, SEQUENCE, AskedStep, StepModel, named, step
from torchtally.trace import Trace


@dataclass(frozen=True, slots=True)
class ConfiguredClass:
    """A class of transformers as a config.json describes it."""

    kind: Any
    config: Any

    @property
    def name(self) -> str:
        return str(self.kind.__name__)

    @property
    def positions(self) -> int | None:
        """The longest sequence; None where nothing says it."""
        key = key_of(self.config, PLAIN[POSITIONS])
        return None if key is None else int(getattr(self.config, key))

    def build(self, config: Any) -> nn.Module:
        """The class without memory."""
        with torch.device("meta"):
            model: nn.Module = self.kind(config)
        return model

    def whole(self, sizes: Mapping[str, int], mode: RecordedMode, chip: Chip) -> Trace:
        """Two steps of the class with all its layers."""
        return whole_training(self.name, lambda: self.build(self.config), sizes, mode, chip)


def configured_class(values: Mapping[str, Any], place: str) -> ConfiguredClass:
    """The class that the keys of a config.json are for; `place` is where they are.

    Raises UsageError where it is none of transformers.
    """
    if "model_type" not in values:
        raise UsageError(f"{place}: steps are written out for classes of transformers alone.")
    kind, config = class_of_values(dict(values), place)
    return ConfiguredClass(kind, config)


def planned_step(
    configured: ConfiguredClass, values: Mapping[str, Any], asked: AskedStep, mode: RecordedMode
) -> Trace:
    """Two training steps at the class's own sizes, the second with the optimizer's state; or an
    answer to a prompt.

    What is recorded is kept for the next step of these keys of a config.json. Where the layers
    cannot be written out from three of them, all of them are run.
    """
    sizes = {BATCH: mode.batch, SEQUENCE: asked.length(configured.positions)}
    if mode.is_compiled:
        trace = configured.whole(sizes, mode, asked.chip)
        how = (
            f"{configured.name} ({releases()}), run with all its layers, each compiled by itself "
            "by PyTorch's own compiler"
        )
        return named(trace, how, asked)
    try:
        symbols = symbols_of(configured.config)
        program = exact_training(configured.build, symbols, sizes, mode, asked.chip)
    except ProgramError as error:
        trace = configured.whole(sizes, mode, asked.chip)
        reason = str(error).splitlines()[0]
        how = (
            f"{configured.name} ({releases()}), run with all its layers, which cannot be "
            f"written out from {LAYERS} of them: {reason.removesuffix('.')}"
        )
        written = named(trace, how, asked)
        keep_trace(written, values, asked)
        return written
    model = StepModel(configured.name, dict(symbols.sizes), symbols.layers)
    keep_program(program, model, program.fixed, values, asked)
    return step(program, model, program.fixed, asked, releases())
