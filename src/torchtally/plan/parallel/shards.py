"""Which weights one chip holds under tensor and expert parallelism, and how pipelines divide them.

Megatron-LM's split (Shoeybi et al. 2019, arXiv 1909.08053, section 3): of two projections that
follow each other, the first by its outputs and the second by its inputs; embedding and head by
vocabulary, padded where it does not divide. Norms, routers and what compresses latent attention are
on every chip. Experts are split among the chips of expert parallelism, and each, like any
feed-forward, by tensor parallelism or among fewer chips.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from torchtally.plan.activations.setting import Implementation
from torchtally.plan.architecture.model import Experts, Layer, Model
from torchtally.plan.architecture.weights import JOIN, Group, Weight, layer_weights, weights_of
from torchtally.plan.parallel.layout import Layout

BY_OUTPUTS = frozenset(
    (
        *("q", "k", "v", "qkv", "q up", "kv up", "relative positions", "sinks"),
        *("gate", "up", "gate and up"),
        *("mixer in", "mixer qkvz", "mixer ba", "mixer qkv", "mixer q", "mixer k", "mixer v"),
        *("mixer r", "mixer z", "mixer a", "mixer b", "mixer decay up", "mixer gate up"),
        *("mixer in bias", "mixer heads", "mixer steps", "mixer steps bias", "mixer A", "mixer D"),
        "mixer decay and bonus",
        *("convolution", "convolution bias"),
        *("q bias", "k bias", "v bias", "qkv bias"),
        *("gate bias", "up bias", "gate and up bias"),
        *("embedding", "head", "head bias", JOIN),
    )
)
BY_INPUTS = frozenset(("attention output", "down", "mixer out", "mixer parts"))
EXPERTS_BY_OUTPUTS = frozenset(("experts in", "experts in bias"))


class WeightSplit(NamedTuple):
    """Numbers of chips among which weights are split."""

    tensor: int
    expert: int
    """Experts, each of them whole."""
    expert_tensor: int
    """Each expert."""

    @classmethod
    def of(cls, layout: Layout) -> "WeightSplit":
        return cls(layout.tensor, layout.expert, layout.expert_split)


@dataclass(frozen=True, slots=True)
class ChipWeights:
    """The weights of one chip, by where they stand in a pipeline."""

    layers: tuple[Weight, ...]
    """Of all layers: a stage has its share of them."""
    depth: int
    """How many layers there are."""
    embedding: tuple[Weight, ...]
    """On the first stage."""
    head: tuple[Weight, ...]
    """On the last stage, with the last norm: the embedding again, where it is tied or prediction
    looks tokens up, and the first stage is another one."""


def chip_weights(model: Model, layout: Layout) -> ChipWeights:
    """What a chip of this layout holds of the model."""
    return _chip_weights(model, WeightSplit.of(layout), layout.pipeline > 1)


@lru_cache(maxsize=1024)
def _chip_weights(model: Model, split: WeightSplit, has_stages: bool) -> ChipWeights:
    layers = [layer_weight for kind in model.kinds for layer_weight in layer_weights(kind, model)]
    outside = [weight for weight in weights_of(model) if weight not in layers]
    embedding = [weight for weight in outside if weight.group is Group.EMBEDDING]
    head = [weight for weight in outside if weight.group is not Group.EMBEDDING]
    if (model.is_tied or model.predicting) and has_stages:
        head += [
            replace(weight, group=Group.HEAD) for weight in embedding if weight.name == "embedding"
        ]
    here, first, last = (
        tuple(on_chip(weight, split) for weight in group) for group in (layers, embedding, head)
    )
    return ChipWeights(here, model.layers, first, last)


def layer_on_chip(kind: Layer, model: Model, layout: Layout) -> tuple[Weight, ...]:
    """The weights of one layer of this kind on one chip."""
    return _layer_on_chip(kind, model, WeightSplit.of(layout))


@lru_cache(maxsize=1024)
def _layer_on_chip(kind: Layer, model: Model, split: WeightSplit) -> tuple[Weight, ...]:
    one = replace(kind, count=1)
    return tuple(on_chip(layer_weight, split) for layer_weight in layer_weights(one, model))


def rows_of(weight: Weight, kind: Layer, tokens: int, layout: Layout) -> int:
    """Rows that one chip multiplies by this weight, of so many tokens on it.

    Expert-parallel chips bring each other their tokens; experts are assumed to be chosen equally
    often.
    """
    block = kind.feed_forward
    if weight.group is Group.EXPERTS and isinstance(block, Experts):
        chosen = experts_run(block, layout.implementation)
        gathered = tokens * layout.expert_chips // layout.tensor
        return max(1, gathered * chosen // block.experts)
    return tokens


def experts_run(experts: Experts, implementation: Implementation) -> int:
    """How many of them compute each token."""
    is_eager = implementation is Implementation.EAGER
    return experts.experts if is_eager and experts.are_all_run else experts.active


def on_chip(weight: Weight, split: WeightSplit) -> Weight:
    """The part of a weight that one chip holds."""
    first, *rest = weight.shape
    if weight.group is Group.EXPERTS:
        inner = _of_expert(weight, rest, split.expert_tensor)
        return replace(weight, shape=(first // split.expert, *inner))
    if weight.name in BY_OUTPUTS:
        return replace(weight, shape=(-(-first // split.tensor), *rest))
    if weight.name in BY_INPUTS:
        return replace(weight, shape=(first, *rest[:-1], rest[-1] // split.tensor))
    return weight


def elements(weights: Iterable[Weight], *, of_experts: bool) -> int:
    """Numbers in experts, or in all the rest."""
    return sum(
        weight.elements for weight in weights if (weight.group is Group.EXPERTS) is of_experts
    )


def _of_expert(weight: Weight, shape: list[int], tensor: int) -> list[int]:
    if weight.name in EXPERTS_BY_OUTPUTS:
        return [shape[0] // tensor, *shape[1:]]
    if weight.name == "experts out":
        return [*shape[:-1], shape[-1] // tensor]
    return shape
