"""Bytes of what a training holds for its parameters: weights, gradients, optimizer state.

All of one replica. What a chip holds of it under a parallel layout is in `parallel/`, and
what is kept for the backward pass in `activations/`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torchtally.plan.architecture.weights import Weight
from torchtally.plan.closed_form import BytesEach, Tokens, closed_form
from torchtally.plan.optimizers import Optimizer, optimizer_state_bytes, uniform_state_bytes
from torchtally.plan.quantity import Amount, Quantity, derive, of, total
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class States:
    """What is held for parameters from step to step."""

    parameters: Quantity
    gradients: Quantity
    master: Quantity
    """Copies of the parameters that the optimizer updates; 0 where it updates the weights."""
    optimizer: Quantity
    total: Quantity


def states(weights: Iterable[Weight], recipe: Recipe, optimizer: Optimizer) -> States:
    """States of a model whose weights are known one by one: exact for every optimizer."""
    tensors = tuple(weights)
    count = of(sum(weight.elements for weight in tensors), Unit.PARAMETERS, "parameters")
    return _states(count, recipe, optimizer_state_bytes(optimizer, tensors, recipe.state_bytes))


def states_of_count(parameters: Amount, recipe: Recipe, optimizer: Optimizer) -> States:
    """States of so many parameters. Raises UsageError for an optimizer that must know their
    shapes.
    """
    count = of(parameters, Unit.PARAMETERS, "parameters")
    return _states(count, recipe, uniform_state_bytes(optimizer, count, recipe.state_bytes))


def states_of_sizes(
    parameters: Amount, weights: Amount, gradients: Amount, master: Amount, optimizer: Quantity
) -> States:
    """States of so many parameters with so many bytes for the weight of each, its gradient and its
    master copy.
    """
    kept = _each("parameters", parameters, weights, "")
    computed = _each("gradients", parameters, gradients, "")
    return _sum(kept, computed, _each("master weights", parameters, master, ""), optimizer)


def parameter_bytes(parameters: Amount, recipe: Recipe) -> Quantity:
    """The weights that the model holds."""
    return _each("parameters", parameters, recipe.weight_bytes, recipe.weights)


def gradient_bytes(parameters: Amount, recipe: Recipe) -> Quantity:
    """A gradient for every parameter."""
    return _each("gradients", parameters, recipe.gradient_bytes, recipe.gradients)


def master_bytes(parameters: Amount, recipe: Recipe) -> Quantity:
    """The copy that the optimizer updates, where the recipe has one."""
    return _each("master weights", parameters, recipe.master_bytes, recipe.master or "none")


def bytes_per_parameter(recipe: Recipe, optimizer: Optimizer) -> Quantity:
    """Bytes of weights, gradients, master weights and optimizer state together.

    16 for AdamW in float32, and for AdamW in mixed precision (ZeRO, arXiv 1910.02054, section 3.1).
    Raises UsageError for an optimizer that must know the tensors' shapes.
    """
    state, unit = states_of_count(1, recipe, optimizer), Unit.BYTES_PER_PARAMETER
    parts = {
        "weights": state.parameters,
        "gradients": state.gradients,
        "master": state.master,
        "optimizer_state": state.optimizer,
    }
    each = {word: of(part.value, unit) for word, part in parts.items()}
    return total("bytes a parameter", unit, each, note=f"{recipe.name}, {optimizer.name}")


def checkpoint_bytes(states: States) -> Quantity:
    """A checkpoint to go on from: weights that are updated, and the optimizer's state.

    Of weights with a master copy, the copy alone: the weights are cast from it.
    """
    kept = states.master if states.master.value else states.parameters
    return total("checkpoint", Unit.BYTES, {"weights": kept, "optimizer_state": states.optimizer})


def token_data_bytes(tokens: Amount, vocabulary: int) -> Quantity:
    """Token ids in a flat file: 2 bytes each up to a vocabulary of 65536, else 4."""
    return _ids_bytes(tokens, 2 if vocabulary <= 1 << 16 else 4)


@closed_form("token data", Unit.BYTES, "nanoGPT's and llm.c's formats: uint16, uint32")
def _ids_bytes(tokens: Tokens, id_bytes: BytesEach) -> str:
    return "tokens * id_bytes"


def _each(name: str, parameters: Amount, itemsize_bytes: Amount, dtype: str) -> Quantity:
    count, each = of(parameters, Unit.PARAMETERS), of(itemsize_bytes, Unit.BYTES_PER_PARAMETER)
    formula = "parameters * bytes_each"
    return derive(name, Unit.BYTES, formula, "", dtype, parameters=count, bytes_each=each)


def _states(parameters: Quantity, recipe: Recipe, optimizer: Quantity) -> States:
    weights, gradients = parameter_bytes(parameters, recipe), gradient_bytes(parameters, recipe)
    return _sum(weights, gradients, master_bytes(parameters, recipe), optimizer)


def _sum(weights: Quantity, gradients: Quantity, master: Quantity, optimizer: Quantity) -> States:
    parts = {"parameters": weights, "gradients": gradients, "master": master}
    parts |= {"optimizer_state": optimizer}
    whole = total("states", Unit.BYTES, parts, note="held from step to step")
    return States(weights, gradients, master, optimizer, whole)
