"""Which weights one chip holds under tensor and expert parallelism, and how pipelines divide them.

Megatron-LM's split (Shoeybi et al. 2019, arXiv 1909.08053, section 3): of two projections that
follow each other, the first by its outputs and the second by its inputs; embedding and head by
vocabulary, padded where it does not divide. Norms, routers and what compresses latent attention are
on every chip. Experts are split among the chips of expert parallelism, and each by tensor
parallelism as any feed-forward.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from torchtally.plan.architecture.model import Layer, Model
from torchtally.plan.architecture.weights import Group, Weight, layer_weights, weights_of

BY_OUTPUTS = frozenset(
    (
        *("q", "k", "v", "qkv", "q up", "kv up", "relative positions", "sinks"),
        *("gate", "up", "gate and up"),
        *("q bias", "k bias", "v bias", "qkv bias"),
        *("gate bias", "up bias", "gate and up bias"),
        *("embedding", "head", "head bias"),
    )
)
BY_INPUTS = frozenset(("attention output", "down"))
EXPERTS_BY_OUTPUTS = frozenset(("experts in", "experts in bias"))


@dataclass(frozen=True, slots=True)
class ChipWeights:
    """The weights of one chip, by where they stand in a pipeline."""

    layers: tuple[Weight, ...]
    """Of all layers: a stage has its share of them."""
    embedding: tuple[Weight, ...]
    """On the first stage."""
    head: tuple[Weight, ...]
    """On the last stage, with the last norm: the embedding again, where it is tied and the first
    stage is another one."""


@lru_cache(maxsize=1024)
def held(model: Model, *, tensor: int = 1, expert: int = 1, pipeline: int = 1) -> ChipWeights:
    """What a chip holds of the model when so many share it."""
    layers = [layer_weight for kind in model.kinds for layer_weight in layer_weights(kind, model)]
    outside = [weight for weight in weights_of(model) if weight not in layers]
    embedding = [weight for weight in outside if weight.group is Group.EMBEDDING]
    head = [weight for weight in outside if weight.group is not Group.EMBEDDING]
    if model.is_tied and pipeline > 1:
        head += [
            replace(weight, group=Group.HEAD) for weight in embedding if weight.name == "embedding"
        ]
    return ChipWeights(
        *(
            tuple(on_chip(weight, tensor, expert) for weight in group)
            for group in (layers, embedding, head)
        )
    )


@lru_cache(maxsize=1024)
def layer_on_chip(kind: Layer, model: Model, tensor: int, expert: int) -> tuple[Weight, ...]:
    """The weights of one layer of this kind on one chip."""
    one = replace(kind, count=1)
    return tuple(
        on_chip(layer_weight, tensor, expert) for layer_weight in layer_weights(one, model)
    )


def on_chip(weight: Weight, tensor: int, expert: int) -> Weight:
    """The part of a weight that one chip holds."""
    first, *rest = weight.shape
    if weight.group is Group.EXPERTS:
        return replace(weight, shape=(first // expert, *_of_expert(weight, rest, tensor)))
    if weight.name in BY_OUTPUTS:
        return replace(weight, shape=(-(-first // tensor), *rest))
    if weight.name in BY_INPUTS:
        return replace(weight, shape=(first, *rest[:-1], rest[-1] // tensor))
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
