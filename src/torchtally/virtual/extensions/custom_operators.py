"""Custom operators that are written in Python: their own code runs, and what it calls is recorded.

`torch.library.custom_op` and `triton_op` have an implementation for CUDA beside the fake one. It
launches Triton kernels and calls other operators, whose work and memory the fake one knows nothing
of.
"""

from collections.abc import Callable
from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.torch_private import OpOverload
from torchtally.virtual.invocation import Invocation

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
