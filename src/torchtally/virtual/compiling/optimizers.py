"""Optimizers that step within a compiled function.

The compiler puts an optimizer's step into its graphs, and torch's global hooks with it. Watching
hooks are no part of the script: they are left out of graphs, and called when the function has run.
Between two graphs the hooks may run as ever: of a step, either one or both.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchtally.virtual.stand_ins import StandIn, instead_of, native_methods

Watcher = Callable[[Optimizer], None]


class Watched:
    """A watcher's hooks, as torch has them."""

    def __init__(self, before: Watcher, after: Watcher) -> None:
        self._before, self._after = before, after
        self._open: list[int] = []
        """Ids of the optimizers whose steps have begun."""

        def step_begins(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.begin(optimizer)

        def step_ends(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.end(optimizer)

        self.step_begins, self.step_ends = step_begins, step_ends

    def begin(self, optimizer: Optimizer) -> None:
        self._open.append(id(optimizer))
        self._before(optimizer)

    def end(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._open:
            self.begin(optimizer)
        self._open.remove(id(optimizer))
        self._after(optimizer)


_watched: list[Watched] = []


@contextmanager
def watch_steps(before: Watcher, after: Watcher) -> Iterator[None]:
    """Call these around each optimizer's step."""
    hooks = Watched(before, after)
    handles = (
        register_optimizer_step_pre_hook(hooks.step_begins),
        register_optimizer_step_post_hook(hooks.step_ends),
    )
    _watched.append(hooks)
    try:
        yield
    finally:
        _watched.remove(hooks)
        for handle in handles:
            handle.remove()


def leave_out(compiler: Any) -> None:
    """Have the compiler trace its own functions for the hooks."""
    for hooks in _watched:
        compiler.take_for(hooks.step_begins, compiler.step_begins)
        compiler.take_for(hooks.step_ends, compiler.step_ends)


def telling(function: Callable[..., Any], compiler: Any) -> Callable[..., Any]:
    """A compiled function, after which the hooks are called for the optimizers that it stepped."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        for optimizer in compiler.take_stepped():
            for hooks in _watched:
                hooks.end(optimizer)
        return result

    return run


def stand_ins(compiler: Any) -> list[StandIn]:
    """State that an optimizer makes while its step is compiled is on the virtual GPU."""
    arguments_of = getattr(*compiler.OPTIMIZER_ARGUMENTS)
    move_steps = getattr(*compiler.STEPS_TO_GPU)

    def arguments(variable: Any, *args: Any, **kwargs: Any) -> Any:
        """It makes its state when it is called with these, as the compiler does next."""
        own, named = arguments_of(variable, *args, **kwargs)
        with compiler.with_modes(), native_methods(torch.Tensor, native=False):
            compiler.make_state(variable.value, own, named)
        return arguments_of(variable, *args, **kwargs)

    def move(variable: Any) -> None:
        with compiler.with_modes(), native_methods(torch.Tensor, native=False):
            move_steps(variable)

    return [
        instead_of(compiler.OPTIMIZER_ARGUMENTS, arguments),
        instead_of(compiler.STEPS_TO_GPU, move),
    ]
