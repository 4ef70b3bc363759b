"""Custom operators that are written in Python: their own code runs, and what it calls is recorded.

`torch.library.custom_op` and `triton_op` have an implementation for CUDA beside the fake one. It
launches Triton kernels and calls other operators, whose work and memory the fake one knows nothing
of. Where the fake one asks for a size that values decide, it is given the least there may be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.torch_private import OpOverload
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.stand_ins import StandIn

NOT_RUN = (
    "{name} is counted as one operator of unknown cost: what it runs on CUDA cannot be simulated "
    "({error})"
)
OPAQUE = (UnsupportedError, ImportError, AttributeError, NotImplementedError)
"""What an implementation raises that calls compiled code of its own."""


def handler_of(overload: OpOverload) -> Callable[..., Any] | None:
    """None of operators that are no custom ones, or have no code for CUDA."""
    function = private.function_of_custom_operator(overload.name(), "cuda")
    if function is None:
        return None

    def run(mode: Any, call: Invocation) -> Any:
        home = call.home
        if home is None or home is mode.host:
            return mode.run(call)
        try:
            with mode, torch.no_grad():
                return function(*call.args, **call.kwargs)
        except OPAQUE as error:
            first = next(iter(str(error).splitlines()), "")
            reason = f"{type(error).__name__}: {first}"
            mode.observer.note(NOT_RUN.format(name=call.operator.name, error=reason))
            return mode.run(call)

    return run


@dataclass(frozen=True, slots=True)
class LeastSizes:
    """What a fake implementation asks for sizes that values decide, as of LLM.int8()'s outliers."""

    mode: Any
    operator: str

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        self.mode.observer.placeholder_given(self.operator, f"assumed: a size of {min}, the least")
        return min


def stand_ins(mode: Any) -> list[StandIn]:
    """Stand-ins of `torch.library.get_ctx`, which fails for meta tensors
    (torch/_library/fake_impl.py).
    """
    native = torch.library.get_ctx

    def get_ctx() -> Any:
        try:
            return native()
        except RuntimeError as error:
            operator, _, rest = str(error).partition(" (")
            if "with meta Tensors" not in rest:
                raise
            return LeastSizes(mode, operator.replace("::", "."))

    return [StandIn(torch.library, "get_ctx", get_ctx)]
