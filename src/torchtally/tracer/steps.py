"""Counting training steps, and stopping the script after enough of them.

A training step ends with the optimizer's step; with several optimizers, with the last of them. An
optimizer that was made but does not step is waited for, but not for ever.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves

from torchtally.record import Role
from torchtally.tracer.recorder import Recorder
from torchtally.virtual.stand_ins import StandIn

PATIENCE_STEPS = 16
"""Steps one optimizer may take while another, made by the script, has not taken any."""


class StepsDone(BaseException):
    """Raised in the script when it has taken as many steps as were asked for.

    Not an Exception, so that the script's own handlers let it pass.
    """


class Steps:
    """Watches optimizers: marks their tensors, ends steps, and stops the script."""

    def __init__(self, recorder: Recorder, wanted: int | None, said: Callable[[int], None]) -> None:
        self.recorder = recorder
        self.wanted = wanted
        self.said = said
        """Told the number of each completed step."""
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def stand_ins(self) -> list[StandIn]:
        native_init = Optimizer.__init__
        made = self._made

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            native_init(optimizer, *args, **kwargs)
            made.add(optimizer)

        return [StandIn(Optimizer, "__init__", init)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = register_optimizer_step_pre_hook(self._before_step)
        after = register_optimizer_step_post_hook(self._after_step)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.recorder.is_optimizing += 1
        for parameter in parameters(optimizer):
            self.recorder.mark(parameter, Role.PARAMETER)
            if parameter.grad is not None:
                self.recorder.mark(parameter.grad, Role.GRADIENT)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.recorder.is_optimizing -= 1
        for state in optimizer.state.values():
            for leaf in tree_leaves(state):
                if isinstance(leaf, Tensor):
                    self.recorder.mark(leaf, Role.OPTIMIZER_STATE)
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        completed = self.completed
        if completed > len(self.recorder.step_ends):
            self.recorder.step_ends.append(self.recorder.clock)
            self.said(completed)
            if self.wanted is not None and completed >= self.wanted:
                raise StepsDone

    @property
    def completed(self) -> int:
        """Steps that every optimizer of the script has taken."""
        counts = [self._counts.get(optimizer, 0) for optimizer in self._made]
        most = max(self._counts.values())
        waited_for = [count for count in counts if count or most <= PATIENCE_STEPS]
        return min(waited_for, default=most)


def parameters(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
