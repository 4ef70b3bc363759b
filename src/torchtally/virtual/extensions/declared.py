"""What the script says that kernels cost: `torchtally.declare_cost`. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from torchtally.errors import UsageError
from torchtally.trace import Literal

Count = Callable[..., int]
"""Of a launch's arguments, by their names."""

FLOPS = "declared_flops"
MOVED = "declared_bytes"
ON_TENSOR_CORES = "on_tensor_cores"
"""Literals of a call (`trace.Call.literals`)."""


@dataclass(frozen=True, slots=True)
class Declared:
    name: str
    flops: Count | int
    bytes: Count | int | None
    tensor_cores: bool

    def literals(self, arguments: Mapping[str, Any]) -> tuple[tuple[str, Literal], ...]:
        """Literals of one launch. Raises UsageError where what was declared is no count."""
        literals: list[tuple[str, Literal]] = [(FLOPS, self._count("flops", self.flops, arguments))]
        if self.bytes is not None:
            literals.append((MOVED, self._count("bytes", self.bytes, arguments)))
        if self.tensor_cores:
            literals.append((ON_TENSOR_CORES, True))
        return tuple(literals)

    def _count(self, what: str, count: Count | int, arguments: Mapping[str, Any]) -> int:
        number = count if isinstance(count, int) else count(**accepted_arguments(count, arguments))
        if not isinstance(number, (int, float)) or number != number or number < 0:
            raise UsageError(
                f"declare_cost({self.name!r}): {what} gave {number!r} instead of a number of "
                f"{'FLOPs' if what == 'flops' else 'bytes'}"
            )
        return round(number)


def accepted_arguments(count: Count, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function has parameters for; all where it takes any."""
    parameters = signature(count).parameters
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


_declared: dict[str, Declared] = {}


def declare_cost(
    name: str, *, flops: Count | int, bytes: Count | int | None = None, tensor_cores: bool = False
) -> None:
    """Say what a kernel costs that torchtally has no rule for.

    `name` is that of a Triton or CUDA kernel (its function's), or of a custom operator
    ("namespace.name"). `flops` is the number of FLOPs of one launch, or a function of the launch's
    arguments: it is called with those that it has parameters for, by name. `bytes` likewise is what
    it reads and writes; left out, each tensor that it reads or writes counts once, whole.
    `tensor_cores` says that the FLOPs are those of products on tensor cores: they count for MFU,
    and are timed at the rate of those.

    Without a simulated GPU it does nothing. A later declaration replaces an earlier one.
    """
    _declared[name.replace("::", ".")] = Declared(name, flops, bytes, tensor_cores)


def declaration_of(name: str) -> Declared | None:
    return _declared.get(name)


def is_anything_declared() -> bool:
    return bool(_declared)
