"""What the backward pass makes again, where operators of a layer are chosen one by one.

torchtitan's selective checkpointing by operators (`SelectiveAC`, distributed/
activation_checkpoint.py) keeps the results of attention's kernel, of reduce-scatters, of exchanges
between experts' chips, and of every other matrix product, the first of a layer among them; all else
is recomputed. A product with a bias is another operator (`addmm`), always kept, and not among those
that are counted; nor are the router's and the experts' own, which are recomputed.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from torchtally.plan.architecture.model import Layer, Model
from torchtally.plan.architecture.weights import Group, Weight, layer_weights

AGAIN = frozenset({Group.ROUTER, Group.EXPERTS})


def products_kept(kind: Layer, model: Model) -> list[Weight]:
    """Matrices whose products with one layer's activations are kept."""
    return [weight for weight, is_kept in _products(kind, model) if is_kept]


def products_again(kind: Layer, model: Model) -> list[Weight]:
    """Matrices whose products with one layer's activations are recomputed."""
    return [weight for weight, is_kept in _products(kind, model) if not is_kept]


def _products(kind: Layer, model: Model) -> Iterator[tuple[Weight, bool]]:
    """Products in their order, each with whether its result is kept."""
    weights = list(layer_weights(replace(kind, count=1), model))
    names = {weight.name for weight in weights}
    places = count()
    for weight in weights:
        if weight.uses and weight.group in AGAIN:
            yield weight, False
        elif weight.uses:
            yield weight, f"{weight.name} bias" in names or next(places) % 2 == 0
