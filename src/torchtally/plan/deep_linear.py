"""The deep linear model: L square matrices of width D and a last one of D by 1, and nothing else.

B: batch.  D: width.  L: layers.  P = D*D*L + D parameters.

Small enough to check every figure by hand: in float32 with AdaGrad a training step holds
4 * (P + B*D*L + P + P) bytes of parameters, activations, gradients and optimizer state.
"""

from dataclasses import dataclass

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.architecture.weights import ONCE, Group, Weight
from torchtally.plan.closed_form import BytesEach, Count, ParameterCount, closed_form
from torchtally.plan.quantity import Amount, Quantity, of, total
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class DeepLinearFlops:
    """FLOPs of one training step on a batch, its products alone."""

    forward: Quantity
    backward: Quantity
    total: Quantity


def deep_linear_weights(width: int, layers: int) -> tuple[Weight, ...]:
    """Its trained tensors."""
    square = Weight("layers", Group.FEED_FORWARD, (width, width), layers, ONCE)
    return (square, Weight("final", Group.HEAD, (width, 1), 1, ONCE))


@closed_form("parameters", Unit.PARAMETERS)
def deep_linear_parameters(width: Count, layers: Count) -> str:
    """P: of L square matrices and a vector."""
    return "width * width * layers + width"


def deep_linear_activation_bytes(
    width: Amount, layers: Amount, batch: Amount, recipe: Recipe
) -> Quantity:
    """Every layer's result, which the next one's weight gradient reads.

    Under autocast also the batch's cast, and casts of all matrices but the first, which no gradient
    is sent through.
    """
    itemsize = recipe.activation_bytes
    results = _results_bytes(width, layers, batch, itemsize)
    if not _casts(recipe):
        return results.with_name("activations")
    parts = {
        "results": results,
        "batch_cast": _batch_cast_bytes(width, batch, itemsize),
        "weight_casts": _weight_casts_bytes(width, layers, itemsize),
    }
    return total("activations", Unit.BYTES, parts)


@closed_form("layers' results", Unit.BYTES)
def _results_bytes(width: Count, layers: Count, batch: Count, itemsize: BytesEach) -> str:
    return "batch * width * layers * itemsize"


@closed_form("batch, cast", Unit.BYTES)
def _batch_cast_bytes(width: Count, batch: Count, itemsize: BytesEach) -> str:
    return "batch * width * itemsize"


@closed_form("weight casts", Unit.BYTES)
def _weight_casts_bytes(width: Count, layers: Count, itemsize: BytesEach) -> str:
    return "(width * width * max(layers - 1, 0) + (width if layers > 0 else 0)) * itemsize"


def deep_linear_flops(width: Amount, layers: Amount, batch: Amount) -> DeepLinearFlops:
    """Six for each parameter and row of the batch, but for the gradient of the batch itself."""
    D, L, B = (of(quantity, Unit.COUNT) for quantity in (width, layers, batch))
    P = deep_linear_parameters(D, L)
    forward, backward = _forward_flops(B, P), _backward_flops(B, P, D, L)
    whole = total("training step", Unit.FLOPS, {"forward": forward, "backward": backward})
    return DeepLinearFlops(forward, backward, whole)


@closed_form("forward", Unit.FLOPS)
def _forward_flops(batch: Count, parameters: ParameterCount) -> str:
    return "2 * batch * parameters"


@closed_form(
    "backward",
    Unit.FLOPS,
    note="the batch needs no gradient: the first layer has one product, the others two",
)
def _backward_flops(batch: Count, parameters: ParameterCount, width: Count, layers: Count) -> str:
    return "4 * batch * parameters - 2 * batch * width * (width if layers > 0 else 1)"


def _casts(recipe: Recipe) -> bool:
    return DTYPE_BYTES.get(recipe.products, recipe.weight_bytes) != recipe.weight_bytes
