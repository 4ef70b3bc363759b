"""transformer_engine.pytorch.distributed: states of random numbers, and recomputation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as checkpoint_by_torch

from .quantization import Precision, autocast


class CudaRNGStatesTracker:
    """A state of random numbers by name: 16 bytes on the device each."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.states_: dict[str, Tensor] = {}
        self.seeds_: set[int] = set()

    def get_states(self) -> dict[str, Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        if seed in self.seeds_:
            raise RuntimeError(f"seed {seed} already exists")
        if name in self.states_:
            raise RuntimeError(f"cuda rng state {name} already exists")
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        if name not in self.states_:
            raise KeyError(f"cuda rng state {name} is not added")
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)


@contextmanager
def activation_recompute_forward(
    activation_recompute: bool = False, recompute_phase: bool = False
) -> Iterator[None]:
    """Context of a forward pass that is done twice, whose scales are those of the first."""
    yield


def is_fp8_activation_recompute_enabled() -> bool:
    return False


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: Any = None,
    use_reentrant: bool = True,
    **options: Any,
) -> Any:
    """torch's, which does not know of the recipe in force and the tracker's states."""
    if distribute_saved_activations:
        raise NotImplementedError(
            "tally does not know distribute_saved_activations of Transformer Engine's checkpoint"
        )
    recipe = Precision.recipe
    tracker = None if get_rng_state_tracker is None else get_rng_state_tracker()
    states = None if tracker is None else tracker.get_states()
    is_first = True

    def run(*args: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            return function(*args, **options)
        after = None if tracker is None else tracker.get_states()
        try:
            if tracker is not None:
                tracker.set_states(states)
            with autocast(recipe is not None, recipe=recipe):
                return function(*args, **options)
        finally:
            if tracker is not None:
                tracker.set_states(after)

    return checkpoint_by_torch(run, *args, use_reentrant=use_reentrant)
