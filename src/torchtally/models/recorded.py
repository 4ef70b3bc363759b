"""Training steps of a class of transformers, recorded as a program.

The class is built without memory and trained for two steps on the virtual GPU: at a few small sizes
with labels (`programs`), or at the sizes asked for. The first step makes the optimizer's state.
What a mode changes (autocast, checkpointing, adapters, other GPUs) is run as the libraries run it,
never derived.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from msgspec.structs import replace
from torch import nn

from torchtally.chips import Chip, Cluster
from torchtally.errors import ProgramError, TallyError
from torchtally.models.optimizers import make_optimizer
from torchtally.models.precision import StepPrecision
from torchtally.models.spread import ALONE, Spread, layers_of, steps_alone
from torchtally.programs import LAYERS, LabelledRun, RunProgram, program_of
from torchtally.programs.labels import recordings_for
from torchtally.programs.sizes import RANKS, Point
from torchtally.programs.step import BATCH, SEQUENCE
from torchtally.runs.function import run
from torchtally.trace import Frame, Site, Trace

STEPS = 2
"""The first makes the optimizer's state, the second is reported."""
CHECK_LAYERS = LAYERS + 2
"""Of the recording that takes no part: with three middle layers."""
Adapt = Callable[[nn.Module], nn.Module]
"""Puts adapters into a model."""


class RecordedSizes(Protocol):
    """A model whose sizes and layers can be changed."""

    @property
    def name(self) -> str: ...

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def kept(self) -> frozenset[str]: ...

    @property
    def shared(self) -> frozenset[str]: ...

    @property
    def period(self) -> int: ...

    @property
    def lead(self) -> int: ...

    def modules(self, layers: int) -> int: ...

    def least(self, sequence: int) -> Mapping[str, int]: ...

    def at(self, values: Mapping[str, int], layers: int) -> Any:
        """What a model is built from, at these sizes and with so many modules."""


class RecordedMode(Protocol):
    """What a program is recorded for, besides its class."""

    @property
    def batch(self) -> int: ...

    @property
    def is_compiled(self) -> bool: ...

    def gpus(self, chip: Chip) -> Cluster:
        """The GPUs that run it."""

    def run(self, model: nn.Module, sizes: Mapping[str, int]) -> None:
        """Run a model on the meta device, at a batch and a sequence."""


@runtime_checkable
class SharedMode(RecordedMode, Protocol):
    """Mode whose weights GPUs may share."""

    def among(self, ranks: int) -> RecordedMode:
        """The same with the weights shared among so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMode:
    """Two training steps."""

    precision: StepPrecision
    optimizer: str = "adamw"
    is_checkpointed: bool = False
    """Every layer is repeated in the backward pass, by the class's own checkpointing."""
    adapt: Adapt | None = None
    """Puts adapters into the model: PEFT's `get_peft_model`."""
    is_compiled: bool = False
    """Every layer is compiled by itself, by PyTorch's own compiler."""
    spread: Spread = ALONE
    """Over which GPUs; rank 0 is recorded. Micro-batches of its layout add up their gradients."""
    has_master: bool = False
    """The optimizer updates float32 copies of the weights, which it holds."""

    @property
    def batch(self) -> int:
        """Samples of a micro-batch."""
        return self.spread.layout.micro_batch

    def gpus(self, chip: Chip) -> Cluster:
        """The GPUs that train."""
        return self.spread.cluster(chip)

    def among(self, ranks: int) -> "TrainingMode":
        """The same with the weights shared among so many."""
        return dataclasses.replace(self, spread=self.spread.among(ranks))

    def run(self, model: nn.Module, sizes: Mapping[str, int]) -> None:
        """Train for two steps."""
        train(model, sizes, self)


def recorded_training(
    build: Callable[[Any], nn.Module],
    config: RecordedSizes,
    asked: Mapping[str, int],
    mode: RecordedMode,
    chip: Chip,
) -> RunProgram:
    """The program of two training steps of a class.

    `asked` are the batch and the sequence that it is for: sizes of one and powers of two choose
    operators, and are recorded. Raises ProgramError where the class's layers are no program.
    """
    sizes = {**asked, **config.sizes}
    plan = recordings_for(sizes, config.least(asked[SEQUENCE]), config.kept, config.shared)
    *recordings, check = (
        record(build, config, point, plan.fixed, layers, mode, chip)
        for point, layers in (*((each, LAYERS) for each in plan.points), (plan.check, CHECK_LAYERS))
    )
    return program_of(recordings, check, plan.units, plan.fixed, config.period, config.lead)


def exact_training(
    build: Callable[[Any], nn.Module],
    config: RecordedSizes,
    asked: Mapping[str, int],
    mode: RecordedMode,
    chip: Chip,
) -> RunProgram:
    """The program of two training steps at the class's own sizes alone: the layers are its only
    symbol. It needs half the recordings of `recorded_training`, and no size has to be a product.

    Raises ProgramError where the class's layers are no program.
    """
    sizes = {**config.sizes, **asked}
    recording, check = (
        record(build, config, Point({}, {}), sizes, layers, mode, chip)
        for layers in (LAYERS, CHECK_LAYERS)
    )
    return program_of([recording], check, {}, sizes, config.period, config.lead)


def whole_training(
    name: str,
    model: Callable[[], nn.Module],
    asked: Mapping[str, int],
    mode: RecordedMode,
    chip: Chip,
) -> Trace:
    """The trace of two training steps of a class's model with all its layers."""
    return traced(lambda: mode.run(model(), asked), name, mode.gpus(chip))


def record(
    build: Callable[[Any], nn.Module],
    config: RecordedSizes,
    point: Point,
    fixed: Mapping[str, int],
    layers: int,
    mode: RecordedMode,
    chip: Chip,
) -> LabelledRun:
    """One training of two steps, at these sizes and with so many layers."""
    values, modules = {**fixed, **point.values}, config.modules(layers)
    if RANKS in values:
        assert isinstance(mode, SharedMode), "weights are shared in training"
        mode = mode.among(values[RANKS])

    def training() -> None:
        mode.run(build(config.at(values, modules)), values)

    return LabelledRun(point, modules, traced(training, config.name, mode.gpus(chip)))


def traced(training: Callable[[], None], name: str, gpus: Cluster) -> Trace:
    """The trace of a run. Raises ProgramError for what the class itself raises."""
    try:
        trace = run(training, gpu=gpus, memory_is_limited=False)
    except TallyError:
        raise
    except Exception as error:  # of the library's own code
        message = " ".join(str(error).split())[:300]
        raise ProgramError(
            f"{name}: the class raised {type(error).__name__} in a recording: {message}"
        ) from error
    return replace(
        trace,
        script=name,
        sites=below_caller(trace),
        placeholders=tuple(replace(each, frame=None) for each in trace.placeholders),
    )


def below_caller(trace: Trace) -> tuple[Site, ...]:
    """The sites without the lines that asked for the recording: those that draw a batch have no
    others. Of a deep stack a site has the innermost lines alone.
    """
    draws = (op for op in trace.ops if trace.calls[op.call].name == "aten.randint")
    above = trace.sites[next(draws).site].frames

    def own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        rests = (n for n in range(len(frames)) if frames[n:] == above[: len(frames) - n])
        return frames[: next(rests, len(frames))]

    return tuple(replace(site, frames=own(site.frames)) for site in trace.sites)


def train(model: nn.Module, sizes: Mapping[str, int], mode: TrainingMode) -> None:
    """Two steps on random tokens. The model is on the meta device."""
    config: Any = model.config
    if mode.precision.weight_dtype is not None:
        model = model.to(mode.precision.weight_dtype)
    if mode.is_checkpointed:
        checkpointed: Any = model
        checkpointed.activation_checkpointing_enable({"use_reentrant": False})
    if mode.adapt is not None:
        with torch.device("meta"):
            model = mode.adapt(model)
    if mode.is_compiled:
        for layer in layers_of(model):
            layer.compile()
    model = mode.spread.on_gpus(model).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options = {"foreach": False} if steps_alone(trained) else {}
    master = MasterWeights(trained) if mode.has_master else None
    stepped = trained if master is None else master.copies
    optimizer = make_optimizer(mode.optimizer, stepped, **options)
    shape = sizes[BATCH], sizes[SEQUENCE]
    micro_batches = mode.spread.layout.micro_batches
    for _ in range(STEPS):
        for _ in range(micro_batches):
            ids, labels = (
                torch.randint(0, config.vocab_size, shape, device="cuda") for _ in range(2)
            )
            with mode.precision.products(), mode.precision.forward():
                loss = model(input_ids=ids, labels=labels, use_cache=False).loss
            if micro_batches > 1:
                loss = loss / micro_batches
            loss.backward()
        if master is None:
            optimizer.step()
        else:
            master.take_gradients()
            optimizer.step()
            master.give_weights()
        optimizer.zero_grad()


class MasterWeights:
    """Float32 copies of weights, for an optimizer to update: what a loop of torch alone does."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.copies = [nn.Parameter(each.detach().float()) for each in weights]

    def take_gradients(self) -> None:
        """Move the gradients of the weights to the copies, in float32."""
        for copy, weight in zip(self.copies, self.weights, strict=True):
            copy.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None

    def give_weights(self) -> None:
        """Round the copies into the weights."""
        with torch.no_grad():
            for copy, weight in zip(self.copies, self.weights, strict=True):
                weight.copy_(copy)
