"""The deep linear model: L square matrices of width D and a last one of D by 1, and nothing else.

B: batch.  D: width.  L: layers.  P = D*D*L + D parameters.

Small enough to check every figure by hand: in float32 with AdaGrad a training step holds
4 * (P + B*D*L + P + P) bytes of parameters, activations, gradients and optimizer state.
"""

from dataclasses import dataclass

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.memory import States, states
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.quantity import Amount, Quantity, derive, of, total
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class DeepLinearMemory:
    """What one training step holds; the batch itself, B * D numbers, is not in it."""

    states: States
    """Parameters, gradients, optimizer state."""
    activations: Quantity
    total: Quantity


@dataclass(frozen=True, slots=True)
class DeepLinearFlops:
    """Of one training step on a batch, its products alone."""

    forward: Quantity
    backward: Quantity
    total: Quantity


def deep_linear_weights(width: int, layers: int) -> tuple[Weight, ...]:
    """Its trained tensors."""
    square = Weight("layers", Group.FEED_FORWARD, (width, width), layers, ONCE)
    return (square, Weight("final", Group.HEAD, (width, 1), 1, ONCE))


def deep_linear_parameters(width: Amount, layers: Amount) -> Quantity:
    """P: of L square matrices and a vector."""
    return derive(
        "parameters",
        Unit.PARAMETERS,
        "width * width * layers + width",
        width=of(width, Unit.COUNT),
        layers=of(layers, Unit.COUNT),
    )


def deep_linear_activation_bytes(
    width: Amount, layers: Amount, batch: Amount, recipe: Recipe
) -> Quantity:
    """Every layer's result, which the next one's weight gradient reads.

    Under autocast also the batch's cast, and casts of all matrices but the first, which no gradient
    is sent through.
    """
    terms = {
        "width": of(width, Unit.COUNT),
        "layers": of(layers, Unit.COUNT),
        "batch": of(batch, Unit.COUNT),
        "itemsize": of(recipe.activation_bytes, Unit.BYTES_EACH),
    }
    results = derive(
        "layers' results", Unit.BYTES, "batch * width * layers * itemsize", **terms
    )  # fmt: skip
    if not _casts(recipe):
        return results.with_name("activations")
    cast = derive(
        "batch, cast", Unit.BYTES, "batch * width * itemsize", **_without(terms, "layers")
    )
    matrices = derive(
        "weight casts",
        Unit.BYTES,
        "(width * width * max(layers - 1, 0) + (width if layers > 0 else 0)) * itemsize",
        **_without(terms, "batch"),
    )
    return total(
        "activations",
        Unit.BYTES,
        {"results": results, "batch_cast": cast, "weight_casts": matrices},
    )


def deep_linear_memory(
    width: int, layers: int, batch: Amount, recipe: Recipe, optimizer: Optimizer
) -> DeepLinearMemory:
    """Everything that a training step holds but for the batch."""
    state = states(deep_linear_weights(width, layers), recipe, optimizer)
    kept = deep_linear_activation_bytes(width, layers, batch, recipe)
    parts = {"states": state.total, "activations": kept}
    return DeepLinearMemory(state, kept, total("training", Unit.BYTES, parts))


def deep_linear_flops(width: Amount, layers: Amount, batch: Amount) -> DeepLinearFlops:
    """Six for each parameter and row of the batch, but for the gradient of the batch itself."""
    D, L, B = (of(quantity, Unit.COUNT) for quantity in (width, layers, batch))
    P = deep_linear_parameters(D, L)
    forward = derive("forward", Unit.FLOPS, "2 * batch * parameters", batch=B, parameters=P)
    backward = derive(
        "backward",
        Unit.FLOPS,
        "4 * batch * parameters - 2 * batch * width * (width if layers > 0 else 1)",
        "",
        "the batch needs no gradient: the first layer has one product, the others two",
        batch=B,
        parameters=P,
        width=D,
        layers=L,
    )
    whole = total("training step", Unit.FLOPS, {"forward": forward, "backward": backward})
    return DeepLinearFlops(forward, backward, whole)


def _casts(recipe: Recipe) -> bool:
    return DTYPE_BYTES.get(recipe.products, recipe.weight_bytes) != recipe.weight_bytes


def _without(terms: dict[str, Quantity], name: str) -> dict[str, Quantity]:
    return {word: term for word, term in terms.items() if word != name}
