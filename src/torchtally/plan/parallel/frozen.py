"""Frozen weights with low-rank adapters beside them, under a layout: bytes, compute, traffic.

Frozen weights are split and shared as trained ones are, and have no gradients or optimizer state.
Adapters follow their matrix (Megatron-LM's split): beside one that is split by its outputs, B is,
and A is whole on every chip; beside one split by its inputs, A is, and B is whole. Beside experts
each chip has the adapters of its own.

r: rank.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.errors import UsageError
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.adapters import MERGED, Adapter, adapted_flops
from torchtally.plan.architecture.model import Layer, Model
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.closed_form import FlopsPerToken, closed_form
from torchtally.plan.flops import Recompute, TokenFlops, token_flops
from torchtally.plan.inference.formats import WeightFormat
from torchtally.plan.inference.weights import bits_each, weight_bytes
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel.compute import NOTHING_S, ChipWork
from torchtally.plan.parallel.kernels import KernelTimes, PassTimes
from torchtally.plan.parallel.layout import Layout, Sharding, spread_over
from torchtally.plan.parallel.passes import MemoryPasses
from torchtally.plan.parallel.shards import (
    ChipWeights,
    chip_weights,
    elements,
    layer_on_chip,
    rows_of,
)
from torchtally.plan.parallel.states import ChipStates
from torchtally.plan.quantity import Quantity, of, total, total_s
from torchtally.plan.recipes import Recipe, recipe
from torchtally.units import Unit
from torchtally.work.convention import Convention

STATES = recipe("fp32")
"""In which adapters, their gradients and their optimizer's state are held: PEFT has them in
float32 (`autocast_adapter_dtype`)."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Adapters that are trained, and how the weights beside them are kept."""

    adapter: Adapter
    base: WeightFormat

    def check(self, model: Model) -> None:
        """Raise UsageError for adapters whose layout is not known."""
        if self.adapter.has_magnitude:
            raise UsageError("--dora and --layout cannot be combined: give --lora without it.")
        if model.predicting:
            raise UsageError("--lora and multi-token prediction cannot be combined.")

    def itemsize_bytes(self, model: Model) -> float:
        """Bytes of one frozen number, on average, with scales."""
        return float(bits_each(model, self.base)) / 8


def adapters_of(weights: Iterable[Weight], adapter: Adapter) -> Iterator[Weight]:
    """A and B of these weights of a chip."""
    for weight in weights:
        if weight.name not in adapter.targets or not weight.uses:
            continue
        *experts, out, given = weight.shape
        yield Weight(
            f"{weight.name} A", weight.group, (*experts, adapter.rank, given), weight.count
        )
        yield Weight(f"{weight.name} B", weight.group, (*experts, out, adapter.rank), weight.count)


def adapters_on_chip(model: Model, layout: Layout, adapter: Adapter) -> ChipWeights:
    """All adapters of a chip, as weights of its layers: it has none in front of or behind them."""
    here = chip_weights(model, layout)
    return ChipWeights(tuple(adapters_of(here.layers, adapter)), here.depth, (), ())


def states_of(
    model: Model, layout: Layout, frozen: Frozen, optimizer: Optimizer, work: Recipe, *, stage: int
) -> ChipStates:
    """States of a chip of this stage: frozen weights, and all that adapters need."""
    here = chip_weights(model, layout)
    stages = spread_over(here.depth, layout.pipeline)
    level = layout.shard.stage
    ends = [
        *(here.embedding if stage == 0 else ()),
        *(here.head if stage == layout.pipeline - 1 else ()),
    ]
    kept: dict[str, Quantity] = {}
    for of_experts in (False, True):
        size = _kept_bytes(here.layers, model, frozen, of_experts=of_experts) / stages
        size += 0 if of_experts else _kept_bytes(ends, model, frozen, of_experts=False)
        shards = layout.expert_shards if of_experts else layout.shards
        if size:
            word = "experts" if of_experts else "others"
            kept[word] = of(ceil(size / (shards if level == 3 else 1)), Unit.BYTES)
    beside = adapters_on_chip(model, layout, frozen.adapter)
    numbers = {True: 0.0, False: 0.0}
    for of_experts in numbers:
        numbers[of_experts] = elements(beside.layers, of_experts=of_experts) / stages

    def each(name: str, itemsize: int, from_level: int) -> Quantity:
        is_shared = level >= from_level
        shards = (layout.shards, layout.expert_shards) if is_shared else (1, 1)
        size = sum(numbers[key] / by for key, by in zip((False, True), shards, strict=True))
        return of(ceil(size * itemsize), Unit.BYTES).with_name(name)

    state = optimizer.state_bytes(list(beside.layers), STATES.state_bytes) / stages
    by = layout.shards if level else 1
    parts = {
        "parameters": total(
            "parameters", Unit.BYTES, {**kept, "adapters": each("adapters", STATES.weight_bytes, 3)}
        ),
        "gradients": each("gradients", STATES.gradient_bytes, 2),
        "gradient_copies": of(0, Unit.BYTES, "copies of gradients"),
        "master": of(0, Unit.BYTES, "master weights"),
        "optimizer": Quantity(
            "optimizer state",
            ceil(state / by),
            Unit.BYTES,
            source=optimizer.source,
            note=optimizer.name,
        ),
        "gathered": of(_gathered(model, here, layout, frozen), Unit.BYTES, "gathered"),
        "casts": of(_at_work(model, layout, frozen, work), Unit.BYTES, "casts"),
    }
    return ChipStates(**parts, total=total("states", Unit.BYTES, parts))


def _kept_bytes(
    weights: Iterable[Weight], model: Model, frozen: Frozen, *, of_experts: bool
) -> int:
    return sum(
        weight_bytes(weight, model, frozen.base)
        for weight in weights
        if (weight.group is Group.EXPERTS) is of_experts
    )


def _gathered(model: Model, here: ChipWeights, layout: Layout, frozen: Frozen) -> int:
    """Bytes of the layer at work and of the next one, where weights are shared."""
    if layout.shard is not Sharding.ZERO3 or layout.shards == 1:
        return 0
    layers = [
        sum(weight.elements for weight in layer_on_chip(kind, model, layout))
        for kind in model.kinds
    ]
    ends = [sum(weight.elements for weight in end) for end in (here.embedding, here.head)]
    return ceil((max(*layers, *ends) + max(layers)) * frozen.itemsize_bytes(model))


def _at_work(model: Model, layout: Layout, frozen: Frozen, work: Recipe) -> int:
    """Bytes of the largest matrix as it is multiplied, where it is kept in another format."""
    if frozen.base.is_plain or work.is_quantised:
        return 0
    widest = max(
        weight.elements
        for kind in model.kinds
        for weight in layer_on_chip(kind, model, layout)
        if weight.uses
    )
    return widest * DTYPE_BYTES[work.weights]


def with_adapters(
    plain: ChipWork,
    kind: Layer,
    model: Model,
    layout: Layout,
    tokens: int,
    frozen: Frozen,
    work: KernelTimes,
) -> ChipWork:
    """A layer's work without gradients of its weights, and with its adapters'.

    As PEFT runs them, in float32 with casts around (EAGER), or in the layer's own dtype (FUSED).
    Experts, which are no modules to PEFT, have their adapters multiplied out and added, and so
    gradients of their weights; fused, they are grouped products like the experts' own.
    """
    adapter, is_fused = frozen.adapter, layout.implementation is Implementation.FUSED
    sums: dict[str, list[Quantity]] = {"forward": [], "inputs": [], "weights": []}
    streams: list[PassTimes] = []
    matrices = 0
    for weight in layer_on_chip(kind, model, layout):
        if weight.name not in adapter.targets or not weight.uses:
            continue
        rows = rows_of(weight, kind, tokens, layout)
        size = work.recipe.activation_bytes
        if weight.name in MERGED and not is_fused:
            gradient = work.products(weight, rows)[2]
            sums["weights"].append(gradient)
            merge = MemoryPasses(5 * size, 4 * size, 3, 3)
            streams.append(work.stream("adapters merged", weight.elements, merge))
            matrices += 1
            continue
        batch, given, out = _shape(weight)
        for name, (N, K) in {"A": (adapter.rank, given), "B": (out, adapter.rank)}.items():
            dtype = work.recipe.activations if is_fused else "float32"
            for word, (m, n, k) in {
                "forward": (rows, N, K),
                "inputs": (rows, K, N),
                "weights": (N, K, rows),
            }.items():
                product = work.product(f"{weight.name} {name}", batch, m, n, k, dtype)
                sums[word].append(product)
        matrices += 2
        around = around_adapters(size, is_fused=is_fused)
        streams.append(work.stream("adapters", batch * rows * out, around))
        if not is_fused:
            # Backward A's part is cast and added to the gradient of the matrix' input.
            casts = MemoryPasses(size + 4, size + 4 + 3 * size, 1, 2)
            streams.append(work.stream("casts for adapters", batch * rows * given, casts))
    there = {f"pass_{n}": pair.forward for n, pair in enumerate(streams)}
    back = {f"pass_{n}": pair.backward for n, pair in enumerate(streams)}
    products = {
        word: {f"product_{n}": each for n, each in enumerate(terms)} for word, terms in sums.items()
    }
    return replace(
        plain,
        forward=total_s("forward", plain=plain.forward, **products["forward"], **there),
        input_gradients=total_s(
            "backward to the input", plain=plain.input_gradients, **products["inputs"], **back
        ),
        weight_gradients=total_s("gradients of adapters", **products["weights"]),
        streaming=total_s(
            "passes",
            plain=plain.streaming,
            **there,
            **{f"{word}_back": each for word, each in back.items()},
        ),
        forward_launches=plain.forward_launches
        + matrices
        + sum(pair.forward_launches for pair in streams),
        backward_launches=plain.backward_launches
        + matrices
        + sum(pair.backward_launches for pair in streams),
    )


def _shape(weight: Weight) -> tuple[int, int, int]:
    """Matrices of a weight, and the inputs and outputs of each."""
    *experts, out, given = weight.shape
    return (experts[0] if experts else 1), given, out


def around_adapters(itemsize: int, *, is_fused: bool) -> MemoryPasses:
    """Passes over what a matrix with an adapter gives: B's result is scaled and added.

    PEFT's are in float32: scaled (8 bytes), added to the matrix' result (4 and itemsize read, 4
    written), and cast back (lora/layer.py, Linear.forward); backward the cast and the scale.
    """
    if is_fused:
        return MemoryPasses(5 * itemsize, 2 * itemsize, 2, 1)
    return MemoryPasses(8 + itemsize + 8 + 4 + itemsize, itemsize + 4 + 8, 3, 2)


def frozen_ends(work: ChipWork) -> ChipWork:
    """The head or the embedding, whose weights have no gradients."""
    return replace(work, weight_gradients=NOTHING_S)


def flops_of_token(
    model: Model, sequence: int, attention: Convention, recompute: Recompute, frozen: Frozen | None
) -> TokenFlops:
    """FLOPs of a token, with what is recomputed and without: frozen matrices once backward."""
    flops = token_flops(model, sequence, attention=attention, recompute=recompute)
    if frozen is None:
        return flops
    adapted = adapted_flops(
        model, frozen.adapter, sequence, attention, is_recomputed=recompute is Recompute.FULL
    )
    again = _with_recomputation(adapted.total, flops.hardware, flops.model)
    return replace(flops, model=adapted.total, hardware=again)


@closed_form("FLOPs per token, with recomputation", Unit.FLOPS_PER_TOKEN)
def _with_recomputation(
    adapted: FlopsPerToken, hardware: FlopsPerToken, plain: FlopsPerToken
) -> str:
    return "adapted + hardware - plain"
