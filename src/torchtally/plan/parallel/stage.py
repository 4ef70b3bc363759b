"""One micro-batch on one stage of a pipeline: seconds of work, and of waiting for other chips.

p: stages.  F, B, W: forward, backward to the input, backward to the weights.
"""

from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.plan.architecture.model import Layer, Model
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.communication import Network
from torchtally.plan.parallel.compute import (
    ChipWork,
    embedding_work,
    head_work,
    layer_work,
    made_again,
)
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.overlap import Overlap, exposed
from torchtally.plan.parallel.traffic import (
    context_traffic,
    expert_traffic,
    outer_tensor_traffic,
    tensor_traffic,
)
from torchtally.plan.quantity import Quantity, derived, of, total
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds in which a chip waits for others, within one micro-batch: what is not hidden."""

    tensor: Quantity
    context: Quantity
    expert: Quantity


@dataclass(frozen=True, slots=True)
class StageTime:
    """The stage's layers, and what only the last stage does: head and loss."""

    forward: Quantity
    """ChipWork alone, of the stage's layers, as the next two."""
    input_gradients: Quantity
    """With what is made again."""
    weight_gradients: Quantity
    backward: Quantity
    """Both halves of it, work alone."""
    forward_with_waits: Quantity
    input_with_waits: Quantity
    ends: Quantity
    """ChipWork of the head; where there is one stage, of the embedding too."""
    waits_forward: Waits
    waits_backward: Waits
    ends_tensor: Quantity
    streaming: Quantity
    """What of the work, with the ends, goes by memory's speed."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer of one kind: its work and its waits."""

    kind: Layer
    work: ChipWork
    waits_forward: Waits
    waits_backward: Waits
    again: Quantity
    """ChipWork of the forward pass that is done once more."""

    @property
    def seconds(self) -> float:
        work, there, back = self.work, self.waits_forward, self.waits_backward
        parts = (work.forward, work.input_gradients, work.weight_gradients, self.again,
                 there.tensor, there.context, there.expert,
                 back.tensor, back.context, back.expert)  # fmt: skip
        return float(sum(quantity.value for quantity in parts))


@dataclass(frozen=True, slots=True)
class Pieces:
    """What stages are made of: the same for any number of them."""

    layers: tuple[LayerTime, ...]
    """One of each kind."""
    head: ChipWork
    embedding: ChipWork
    outer_tensor: Quantity
    """Seconds that embedding and head wait for tensor parallelism."""

    @property
    def layers_s(self) -> float:
        """Of all layers one after the other, with their waits: what no schedule can hide."""
        return float(sum(layer.kind.count * layer.seconds for layer in self.layers))


@dataclass(frozen=True, slots=True)
class Sends:
    """Seconds that a layer's forward pass sends to other chips, hidden or not."""

    tensor: Quantity
    context: Quantity
    expert: Quantity


@dataclass(frozen=True, slots=True)
class LayerWorks:
    """A micro-batch through one layer of each kind and both ends: work and sends, done once."""

    layers: tuple[tuple[Layer, ChipWork, Sends], ...]
    head: ChipWork
    embedding: ChipWork
    outer: Quantity
    """Seconds that embedding and head send for tensor parallelism."""


def works(
    model: Model, layout: Layout, sequence: int, recipe: Recipe, chip: Chip, network: Network
) -> LayerWorks:
    """One chip's, after tensor, context and expert parallelism."""
    workload = (model, layout, sequence, recipe)
    layers = []
    for kind in model.kinds:
        sends = Sends(
            tensor_traffic(kind, *workload, network).seconds,
            context_traffic(kind, *workload, network).seconds,
            expert_traffic(kind, *workload, network).seconds,
        )
        layers.append((kind, layer_work(kind, *workload, chip), sends))
    return LayerWorks(
        tuple(layers),
        head_work(*workload, chip),
        embedding_work(*workload, chip),
        outer_tensor_traffic(*workload, network).seconds,
    )


def pieces(works: LayerWorks, layout: Layout, overlap: Overlap) -> Pieces:
    """With what is done again, and what does not hide behind work."""
    return Pieces(
        tuple(
            LayerTime(kind, work, *_waits(work, sends, layout, overlap), made_again(work, layout))
            for kind, work, sends in works.layers
        ),
        works.head,
        works.embedding,
        exposed("embedding and head", works.outer, of(0.0, Unit.SECONDS), overlap.tensor),
    )


def stage_time(pieces: Pieces, stages: int) -> StageTime:
    """Layers of every kind are spread evenly over the stages."""
    works = [layer.work for layer in pieces.layers]
    kinds = tuple(layer.kind for layer in pieces.layers)

    def spread(name: str, each: list[Quantity]) -> Quantity:
        return _spread(name, kinds, each, stages)

    ends = {"head": pieces.head}
    if stages == 1:
        ends["embedding"] = pieces.embedding
    streaming = {"layers": spread("passes", [work.streaming for work in works])}
    streaming |= {word: ending.streaming for word, ending in ends.items()}
    forward = spread("forward", [work.forward for work in works])
    inputs = spread("backward to the input", [_backward(layer) for layer in pieces.layers])
    weights = spread("backward to the weights", [work.weight_gradients for work in works])
    there = _spread_waits([layer.waits_forward for layer in pieces.layers], kinds, stages)
    back = _spread_waits([layer.waits_backward for layer in pieces.layers], kinds, stages)
    return StageTime(
        forward=forward,
        input_gradients=inputs,
        weight_gradients=weights,
        backward=total("backward", Unit.SECONDS, {"input": inputs, "weights": weights}),
        forward_with_waits=_with_waits("forward", forward, there),
        input_with_waits=_with_waits("backward to the input", inputs, back),
        ends=total(
            "head and embedding",
            Unit.SECONDS,
            {
                f"{word}_{half}": quantity
                for word, work in ends.items()
                for half, quantity in {
                    "forward": work.forward,
                    "backward": work.input_gradients,
                    "weights": work.weight_gradients,
                }.items()
            },
        ),
        waits_forward=there,
        waits_backward=back,
        ends_tensor=pieces.outer_tensor,
        streaming=total("passes over memory", Unit.SECONDS, streaming),
    )


def _with_waits(name: str, work: Quantity, waits: Waits) -> Quantity:
    parts = {
        "work": work,
        "tensor": waits.tensor,
        "context": waits.context,
        "expert": waits.expert,
    }
    return total(name, Unit.SECONDS, parts)


def _backward(layer: LayerTime) -> Quantity:
    parts = {"backward": layer.work.input_gradients, "made_again": layer.again}
    return total("backward to the input", Unit.SECONDS, parts)


def _waits(work: ChipWork, sends: Sends, layout: Layout, overlap: Overlap) -> tuple[Waits, Waits]:
    """Of one layer, forward and backward; what is made again sends its sums again."""
    sums, ring, routed = sends.tensor, sends.context, sends.expert
    twice = derived("keys, values and their gradients", Unit.SECONDS, "2 * forward", forward=ring)
    is_again = layout.recompute is Recompute.FULL
    sums_back, ring_back, routed_back = (
        total("backward and again", Unit.SECONDS, {"backward": back, "made_again": there})
        if is_again
        else back
        for back, there in ((sums, sums), (twice, ring), (routed, routed))
    )
    meanwhile = work.forward
    back = work.input_gradients
    return (
        Waits(
            exposed("tensor parallelism", sums, meanwhile, overlap.tensor),
            exposed("context parallelism", ring, work.attention, overlap.context),
            exposed("expert parallelism", routed, meanwhile, overlap.expert),
        ),
        Waits(
            exposed("tensor parallelism, backward", sums_back, back, overlap.tensor),
            exposed(
                "context parallelism, backward", ring_back, work.attention_backward, overlap.context
            ),
            exposed("expert parallelism, backward", routed_back, back, overlap.expert),
        ),
    )


def _spread(name: str, kinds: tuple[Layer, ...], each: list[Quantity], stages: int) -> Quantity:
    if not any(quantity.value for quantity in each):
        return derived(name, Unit.SECONDS, "0")
    terms = {"stages": of(stages, Unit.COUNT)}
    sums = []
    for n, (kind, one) in enumerate(zip(kinds, each, strict=True)):
        terms |= {f"layers_{n}": of(kind.count, Unit.COUNT), f"each_{n}_s": one}
        sums.append(f"layers_{n} * each_{n}_s")
    return derived(name, Unit.SECONDS, f"({' + '.join(sums)}) / stages", **terms)


def _spread_waits(each: list[Waits], kinds: tuple[Layer, ...], stages: int) -> Waits:
    return Waits(
        _spread("tensor parallelism", kinds, [waits.tensor for waits in each], stages),
        _spread("context parallelism", kinds, [waits.context for waits in each], stages),
        _spread("expert parallelism", kinds, [waits.expert for waits in each], stages),
    )
