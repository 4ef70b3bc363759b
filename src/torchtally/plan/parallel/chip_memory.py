"""Bytes on one chip of a layout: what it holds from step to step, and what for the backward pass.

p: stages.  The fullest chip is of the first stage, which has the embedding and the most
micro-batches in flight, or of the last, which has the head and the logits: both are counted.
"""

from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.memory.workspace import context_bytes
from torchtally.plan.activations.kept import (
    embedding_activation_bytes,
    head_activation_bytes,
    layer_activation_bytes,
    loss_bytes,
    working_activation_bytes,
)
from torchtally.plan.activations.setting import Loss, Options, setting_of
from torchtally.plan.adapters import Adapter
from torchtally.plan.architecture.model import Model
from torchtally.plan.closed_form import Bytes, Count, Number, closed_form
from torchtally.plan.parallel.degrees import DEGREES
from torchtally.plan.parallel.layout import Layout, chunks_as_long, spread_over
from torchtally.plan.parallel.pipeline import in_flight
from torchtally.plan.parallel.states import ChipStates
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.plan.recipes import Recipe
from torchtally.timing.network.buffers import CONNECTION_BYTES
from torchtally.units import Unit

NCCL_CHANNELS = 24
"""What NCCL says that it uses in a node of H100s ("24 coll channels" in its logs).

Memory is asked for where the wires between chips are unknown, too, so they do not decide here.
"""


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """What a chip keeps of a micro-batch for its backward pass, by what keeps it."""

    layers: tuple[tuple[int, Quantity], ...]
    """Of each kind of layer: how many there are, and what one keeps."""
    embedding: Quantity
    head: Quantity
    """The logits, and what the loss keeps."""
    loss: Quantity
    """Present only while the loss runs backward."""
    working: Quantity
    """Present only while one layer is recomputed."""


@dataclass(frozen=True, slots=True)
class StageActivations:
    """What a chip of one stage keeps of a micro-batch for its backward pass."""

    layers: Quantity
    """With the embedding's, on the first stage."""
    head: Quantity
    """On the last stage."""
    loss: Quantity
    working: Quantity


@dataclass(frozen=True, slots=True)
class ChipMemory:
    """All that is on one chip at the fullest moment. Nothing is lost to fragmentation in it.

    All gradients are counted beside all activations, which is so from the second micro-batch on;
    with one, gradients come as activations go, and this is an upper bound. What an optimizer of
    many operators needs while it runs is less than the activations that are gone then.
    """

    stage: int
    states: ChipStates
    in_flight: Quantity
    activations: Quantity
    """Of all micro-batches in flight."""
    logits: Quantity
    """Or what recomputing one layer takes later, where that is more."""
    outside: Quantity
    """Estimated: CUDA's context and the buffers of NCCL, outside of any tensor."""
    total: Quantity


def ends(layout: Layout) -> tuple[int, ...]:
    """The first and the last stage, from 0."""
    return (0, layout.pipeline - 1) if layout.pipeline > 1 else (0,)


def memory_of_stage(
    layout: Layout,
    states: ChipStates,
    activations: StageActivations,
    outside: Quantity,
    stage: int,
    layers: int,
) -> ChipMemory:
    """What is on a chip of this stage of so many layers' pipeline, from its parts."""
    flying = flying_on(layout, stage, layers)
    kept = kept_bytes(activations.layers, flying)
    last = at_the_end(layout, activations)
    parts = {
        "states": states.total,
        "activations": kept,
        "logits_or_layer": last,
        "context_and_buffers": outside,
    }
    return ChipMemory(
        stage, states, flying, kept, last, outside, total("memory", Unit.BYTES, parts)
    )


def flying_on(layout: Layout, stage: int, layers: int) -> Quantity:
    """Micro-batches whose activations a stage keeps."""
    return in_flight(
        layout.schedule,
        layout.pipeline,
        layout.micro_batches,
        stage=stage,
        virtual_stages=chunks_as_long(layers, layout.pipeline, layout.virtual_stages),
    )


@closed_form("activations", Unit.BYTES)
def kept_bytes(per_micro_batch_bytes: Bytes, in_flight: Number) -> str:
    """Bytes of a stage's layers, for all micro-batches in flight."""
    return "per_micro_batch_bytes * in_flight"


def at_the_end(layout: Layout, activations: StageActivations) -> Quantity:
    """What is there besides: the logits with their gradient, or later what one layer recomputes."""
    return _logits_or_layer(
        layout.losses_at_once, activations.head, activations.loss, activations.working
    )


@closed_form("logits, or one layer recomputed", Unit.BYTES)
def _logits_or_layer(times: Count, logits: Bytes, gradient: Bytes, recomputed: Bytes) -> str:
    return "max(times * logits + gradient, recomputed)"


def layer_activations(
    model: Model,
    layout: Layout,
    sequence: int,
    recipe: Recipe,
    loss: Loss | None = None,
    adapter: Adapter | None = None,
) -> LayerActivations:
    """Activations of one micro-batch on a chip: by kind of layer, and at both ends."""
    options: Options = {**layout.activation_options, "loss": loss, "adapter": adapter}
    at = setting_of(model, layout.micro_batch, sequence, recipe, **options)
    return LayerActivations(
        tuple((kind.count, layer_activation_bytes(at, kind)) for kind in model.kinds),
        embedding_activation_bytes(at),
        head_activation_bytes(at),
        loss_bytes(at),
        working_activation_bytes(at),
    )


BUFFERED_LAYERS = 2
"""Whose activations are on their way to the host or back."""


def stage_activations(
    activations: LayerActivations, stages: int, *, stage: int, offloaded: int = 0
) -> StageActivations:
    """Activations of one micro-batch on a chip of this stage; layers of every kind are spread
    evenly. Those of so many are in the host's memory, but for two that are on their way.
    """
    depth = sum(count for count, _ in activations.layers)
    terms = {"stages": of(spread_over(depth, stages), Unit.NUMBER)}
    sums = []
    for n, (count, each) in enumerate(activations.layers):
        terms |= {f"layers_{n}": of(count, Unit.COUNT), f"each_{n}_bytes": each}
        sums.append(f"layers_{n} * each_{n}_bytes")
    formula = f"({' + '.join(sums)}) / stages"
    if offloaded > BUFFERED_LAYERS:
        here = depth / terms["stages"].value
        terms |= {
            "kept": of(here - offloaded + BUFFERED_LAYERS, Unit.COUNT),
            "here": of(here, Unit.COUNT),
        }
        formula += " * kept / here"
    if stage == 0:
        terms["embedding_bytes"] = activations.embedding
        formula += " + embedding_bytes"
    layers = derive("activations of a micro-batch", Unit.BYTES, formula, **terms)
    nothing = derive("logits", Unit.BYTES, "0")
    is_last = stage == stages - 1
    head, loss = (activations.head, activations.loss) if is_last else (nothing, nothing)
    return StageActivations(layers, head, loss, activations.working)


def outside(layout: Layout, chip: Chip) -> Quantity:
    """CUDA's context, and a set of NCCL's buffers for each communication group: estimated.

    0 for the context of a chip that is not a CUDA device: unpublished.
    """
    context = context_bytes(chip)
    groups = sum(degree.ranks(layout) > 1 for degree in DEGREES)
    return outside_bytes(context, groups)


@closed_form(
    "context and buffers",
    Unit.BYTES,
    "NVIDIA/nccl 2.30.7, src/init.cc @5067397c: computeBuffSizes",
    "estimated: CUDA's context by its libraries, NCCL's buffers by its defaults",
)
def outside_bytes(
    context: Bytes,
    groups: Count,
    channels: Count = NCCL_CHANNELS,
    connection: Bytes = CONNECTION_BYTES,
) -> str:
    return "context + groups * channels * connection"
