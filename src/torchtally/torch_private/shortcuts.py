"""What the compiler computes again and again though its answer is known: the same answers, sooner.

Imported with the compiler. Each was a second or so of the forty-eight that a GPT-2 took.
"""

from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch._inductor.dtype_propagation as dtype_propagation
import torch._inductor.scheduler as scheduling
from sympy.core.relational import Equality  # type: ignore[import-untyped]
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torchtally.torch_private.places import PrivateName

NUMBERS = (int, sympy.Integer)


def shortcuts() -> Iterator[tuple[PrivateName, Any]]:
    """(name, what to put there), of those that this release has."""
    for owner, name, make in (
        (Equality, "__new__", equality),
        (dtype_propagation.DtypePropagationOpsHandler, "__init__", initialise_once),
        (scheduling, "get_scheduler_node_symbol_uses", symbol_uses),
    ):
        native = getattr(owner, name, None)
        if native is not None:
            yield PrivateName(owner, name), make(native)


def equality(native: Callable[..., Any]) -> Callable[..., Any]:
    """Two whole numbers, as sizes are, are equal or not: no rule of sympy's is needed for that."""

    def new(cls: Any, left: Any, right: Any, **options: Any) -> Any:
        if not options and isinstance(left, NUMBERS) and isinstance(right, NUMBERS):
            return sympy.true if int(left) == int(right) else sympy.false
        return native(cls, left, right, **options)

    return new


def initialise_once(native: Callable[[Any], None]) -> Callable[[Any], None]:
    """Its class returns one handler to all callers, and Python calls `__init__` each time."""
    initialised: list[Any] = []

    def init(handler: Any) -> None:
        if not any(each is handler for each in initialised):
            native(handler)
            initialised.append(handler)

    return init


def symbol_uses(native: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Empty in a graph whose sizes are all known: it has no symbols."""

    def uses(node: Any) -> Any:
        sizes = V.graph.sizevars.shape_env
        return native(node) if sizes is None or sizes.var_to_range else OrderedSet[Any]()

    return uses
