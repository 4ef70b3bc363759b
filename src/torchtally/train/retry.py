"""The same step with fewer rows at a time, where the device's memory was too small for it."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def halved_until_it_fits(
    attempt: Callable[[int], Result],
    size: int,
    *,
    least: int,
    device: torch.device,
    discard: Callable[[], None],
    note: Callable[[int], str],
) -> tuple[int, Result]:
    """The size that fits, and the result of `attempt` with it; `size` is tried first.

    After torch.OutOfMemoryError, and no other error, `discard` undoes the attempt, caches are
    freed, torch's random numbers set back, and half the size tried, down to `least`: there the
    error is raised with a note. So there are log2(size / least) + 2 attempts at most.
    """
    randomness = _randomness(device)
    while True:
        try:
            return size, attempt(size)
        except torch.OutOfMemoryError as error:
            if size <= least:
                error.add_note(note(size))
                raise
        # Out of the except block, the error has let go of the frames and their tensors.
        size = max(size // 2, least)
        discard()
        _free_caches(device)
        _set_randomness(device, randomness)


Randomness = tuple[Tensor, Tensor | None]


def _randomness(device: torch.device) -> Randomness:
    """States of torch's generators; the device's is known to the host, which waits for nothing."""
    of_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), of_device


def _set_randomness(device: torch.device, randomness: Randomness) -> None:
    of_host, of_device = randomness
    torch.set_rng_state(of_host)
    if of_device is not None:
        torch.cuda.set_rng_state(of_device, device)


def _free_caches(device: torch.device) -> None:
    gc.collect()  # frames that the error went through may hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
