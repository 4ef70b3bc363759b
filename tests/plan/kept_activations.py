"""All that a micro-batch keeps on one chip that has all layers: the closed forms together."""

from dataclasses import dataclass
from typing import Unpack

from torchtally.plan.activations.kept import (
    embedding_activation_bytes,
    head_activation_bytes,
    layers_activation_bytes,
    working_activation_bytes,
)
from torchtally.plan.activations.setting import Options, setting_of
from torchtally.plan.architecture.model import Model
from torchtally.plan.quantity import Amount, Quantity, derive
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class Activations:
    """What one micro-batch keeps on one chip that has all layers."""

    embedding: Quantity
    layers: tuple[Quantity, ...]
    """One for each of the model's kinds of layer, for all layers of the kind."""
    head: Quantity
    working: Quantity
    """One layer's, recomputed while its backward runs; 0 without recomputation."""
    total: Quantity
    """At the fullest moment: with the head's, or once that is freed with `working`."""


def activations(
    model: Model, batch: Amount, sequence: Amount, recipe: Recipe, **options: Unpack[Options]
) -> Activations:
    """All that a micro-batch of so many sequences keeps for its backward pass."""
    at = setting_of(model, batch, sequence, recipe, **options)
    embedding, head = embedding_activation_bytes(at), head_activation_bytes(at)
    layers = tuple(layers_activation_bytes(at, kind) for kind in model.kinds)
    working = working_activation_bytes(at)
    kinds = {f"layers_{n}": layer for n, layer in enumerate(layers)}
    whole = derive(
        "activations",
        Unit.BYTES,
        " + ".join(["embedding", *kinds, "max(head, working)"]),
        "",
        "kept for the backward pass of one micro-batch",
        embedding=embedding,
        head=head,
        working=working,
        **kinds,
    )
    return Activations(embedding, layers, head, working, whole)
