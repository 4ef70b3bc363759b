"""The autograd engine, asked without `backward`: a pipeline's schedule keeps outputs without data.

Below torch's own frame, `_engine_run_backward` (torch/autograd/graph.py), is backward; a call from
elsewhere goes through it.
"""

import sys
from typing import Any

from torchtally import torch_private as private
from torchtally.virtual.stand_ins import StandIn, instead_of


class FramedEngine:
    """`Variable._execution_engine`."""

    def __init__(self, native: Any) -> None:
        self._native = native

    @property
    def run_backward(self) -> Any:
        """The native one for torch's own frame, which stays the innermost."""
        is_framed = sys._getframe(1).f_code is private.engine_code()
        return self._native.run_backward if is_framed else private.run_engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def stand_ins() -> list[StandIn]:
    name = private.AUTOGRAD_ENGINE
    return [instead_of(name, FramedEngine(getattr(name.owner, name.name)))]
