"""Bytes that a chip of one stage holds for its weights, and how many others share them.

p: stages.
"""

from dataclasses import dataclass

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.activations.kept import held_cast_bytes
from torchtally.plan.activations.setting import setting_of
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.weights import Weight
from torchtally.plan.closed_form import (
    Bytes,
    BytesPerParameter,
    Number,
    ParameterCount,
    closed_form,
)
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel.layout import Layout, Sharding, spread_over
from torchtally.plan.parallel.shards import ChipWeights, chip_weights, elements, layer_on_chip
from torchtally.plan.parallel.traffic import gathered_itemsize_bytes
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit

ZERO = "ZeRO, arXiv 1910.02054, section 5"


@dataclass(frozen=True, slots=True)
class ChipStates:
    """What a chip of one stage holds from step to step, and copies of weights while it works."""

    parameters: Quantity
    gradients: Quantity
    gradient_copies: Quantity
    """Flat ones that are shared with nobody, and the one that the optimizer is given."""
    master: Quantity
    optimizer: Quantity
    gathered: Quantity
    """Where parameters are shared: those of the layer at work and of the next, and the gradients of
    one layer before they are shared out."""
    casts: Quantity
    """Copies of weights in the products' dtype."""
    total: Quantity


def chip_states(
    model: Model, layout: Layout, recipe: Recipe, optimizer: Optimizer, *, stage: int
) -> ChipStates:
    """States of a chip of this stage: what its weights, gradients and optimizer state take."""
    here = chip_weights(model, layout)
    dense, experts = (
        parameters_of_stage(here, layout, stage, of_experts=of_experts)
        for of_experts in (False, True)
    )
    level = layout.shard.stage

    def each(name: str, itemsize: int, from_level: int) -> Quantity:
        return _sharable_bytes(name, dense, experts, itemsize, layout, level >= from_level)

    parts = {
        "parameters": each("parameters", recipe.weight_bytes, 3),
        "gradients": each("gradients", recipe.gradient_bytes, 2),
        "gradient_copies": _copies(dense, experts, layout, recipe),
        "master": each("master weights", recipe.master_bytes, 1),
        "optimizer": _optimizer(here, layout, recipe, optimizer, stage),
        "gathered": _gather_buffer_bytes(model, here, layout, recipe),
        "casts": _casts(model, here, layout, recipe),
    }
    return ChipStates(**parts, total=total("states", Unit.BYTES, parts))


def _copies(dense: Quantity, experts: Quantity, layout: Layout, recipe: Recipe) -> Quantity:
    """Copies of gradients that a library makes of its own."""
    is_shared = layout.shard is not Sharding.NONE
    flat, step = recipe.flat_gradient_bytes, recipe.step_gradient_bytes
    if not (flat or step):
        return derive("copies of gradients", Unit.BYTES, "0")
    parts = {
        "flat": _sharable_bytes("flat", dense, experts, flat, layout, False),
        "of_the_step": _sharable_bytes("of the step", dense, experts, step, layout, is_shared),
    }
    return total("copies of gradients", Unit.BYTES, parts)


def parameters_of_stage(
    here: ChipWeights, layout: Layout, stage: int, *, of_experts: bool
) -> Quantity:
    """Parameters on a chip of this stage before any sharing: experts', or all others."""
    outside = elements(_outside_layers(here, layout, stage), of_experts=of_experts)
    stages = spread_over(here.depth, layout.pipeline)
    count = _parameters(elements(here.layers, of_experts=of_experts), stages, outside)
    return count.with_name("experts") if of_experts else count


@closed_form("parameters on the chip", Unit.PARAMETERS)
def _parameters(layers: ParameterCount, stages: Number, outside: ParameterCount) -> str:
    return "layers / stages + outside"


def _outside_layers(here: ChipWeights, layout: Layout, stage: int) -> tuple[Weight, ...]:
    first = here.embedding if stage == 0 else ()
    return first + (here.head if stage == layout.pipeline - 1 else ())


def _sharable_bytes(
    name: str, dense: Quantity, experts: Quantity, itemsize: int, layout: Layout, is_shared: bool
) -> Quantity:
    """Bytes of both, each over those that share it."""
    formula, terms = "parameters", {"parameters": dense}
    if is_shared:
        formula, terms["shards"] = "parameters / shards", of(layout.shards, Unit.CHIPS)
    if experts.value:
        formula, terms["experts"] = f"{formula} + experts", experts
        if is_shared:
            formula += " / expert_shards"
            terms["expert_shards"] = of(layout.expert_shards, Unit.CHIPS)
    return derive(
        name,
        Unit.BYTES,
        f"({formula}) * bytes_each",
        ZERO if is_shared else "",
        bytes_each=of(itemsize, Unit.BYTES_PER_PARAMETER),
        **terms,
    )


def _optimizer(
    here: ChipWeights, layout: Layout, recipe: Recipe, optimizer: Optimizer, stage: int
) -> Quantity:
    """Optimizer state by the optimizer's own rule for each tensor, as it is on the chip before it
    is shared.
    """
    ends = _outside_layers(here, layout, stage)
    is_shared = layout.shard is not Sharding.NONE

    def state(weights: tuple[Weight, ...], of_experts: bool) -> int:
        tensors = [
            weight for weight in weights if bool(elements((weight,), of_experts=True)) is of_experts
        ]
        return optimizer.state_bytes(tensors, recipe.state_bytes)

    return derive(
        "optimizer state",
        Unit.BYTES,
        "(layers / stages + outside) / shards + experts / stages / expert_shards",
        optimizer.source,
        optimizer.name,
        layers=of(state(here.layers, False), Unit.BYTES),
        stages=of(spread_over(here.depth, layout.pipeline), Unit.NUMBER),
        outside=of(state(ends, False), Unit.BYTES),
        shards=of(layout.shards if is_shared else 1, Unit.CHIPS),
        experts=of(state(here.layers, True), Unit.BYTES),
        expert_shards=of(layout.expert_shards if is_shared else 1, Unit.CHIPS),
    )


def _gather_buffer_bytes(
    model: Model, here: ChipWeights, layout: Layout, recipe: Recipe
) -> Quantity:
    if layout.shard.stage < 2 or layout.shards == 1:
        return derive("gathered", Unit.BYTES, "0")
    units = [
        sum(weight.elements for weight in layer_on_chip(kind, model, layout))
        for kind in model.kinds
    ]
    largest = max(
        *units, *(sum(weight.elements for weight in end) for end in (here.embedding, here.head))
    )
    gathered = gathered_itemsize_bytes(recipe) if layout.shard is Sharding.ZERO3 else 0
    return _gathered_bytes(largest, max(units), gathered, recipe.gradient_bytes)


@closed_form(
    "gathered",
    Unit.BYTES,
    ZERO,
    "the layer at work and the one fetched ahead; one layer's gradients",
)
def _gathered_bytes(
    largest: ParameterCount,
    next_layer: ParameterCount,
    gathered_bytes: BytesPerParameter,
    gradient_bytes: BytesPerParameter,
) -> str:
    return "(largest + next_layer) * gathered_bytes + largest * gradient_bytes"


def _casts(model: Model, here: ChipWeights, layout: Layout, recipe: Recipe) -> Quantity:
    """Autocast's copies until the forward pass is over, where layers are recomputed; else they are
    among the activations. Without autocast a copy of the chip's own matrices, for all
    micro-batches of a step. Parameters that are shared are gathered in the products' dtype.
    """
    if layout.shard is Sharding.ZERO3:
        return derive("casts", Unit.BYTES, "0")
    stages = spread_over(here.depth, layout.pipeline)
    if not recipe.is_autocast:
        products = DTYPE_BYTES.get(recipe.products, recipe.weight_bytes)
        is_cast = products < recipe.weight_bytes and not recipe.has_8_bit_weights
        matrices = sum(weight.elements for weight in here.layers if weight.uses) * is_cast
        return _step_cast_bytes(matrices, stages, products)
    if layout.recompute is Recompute.NONE:
        return derive("casts", Unit.BYTES, "0")
    whole = held_cast_bytes(setting_of(model, 1, 1, recipe, **layout.activation_options))
    return _cast_bytes(whole, stages)


@closed_form("casts", Unit.BYTES, "Transformer Engine, Linear.forward: is_first_microbatch")
def _step_cast_bytes(
    matrices: ParameterCount, stages: Number, product_bytes: BytesPerParameter
) -> str:
    return "matrices / stages * product_bytes"


@closed_form("casts", Unit.BYTES)
def _cast_bytes(all_layers: Bytes, stages: Number) -> str:
    return "all_layers / stages"
