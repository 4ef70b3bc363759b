"""What follows when memory runs out: the step is repeated with smaller micro-batches, or the error
explained.

Only torch.OutOfMemoryError is retried. When host memory runs out PyTorch raises a plain
RuntimeError, recognisable only by its text, and where Linux overcommits the OOM killer ends the
process instead. So such an error ends the run, with a remedy.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from torchtally.checkpoints.ranks import Ranks
from torchtally.errors import TallyError

HOST_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
"""The text of its error: c10/core/impl/alloc_cpu.cpp."""

T = TypeVar("T")


class MemoryShortageError(TallyError, torch.OutOfMemoryError):
    """Error where memory is out after all retries. Also a torch.OutOfMemoryError."""


@contextmanager
def explain_shortage(remedy: str) -> Iterator[None]:
    """Turn out-of-memory errors into MemoryShortageError with a remedy.

    These are torch.OutOfMemoryError of the device, MemoryError of Python and NumPy, and the
    RuntimeError of PyTorch's host allocator. Other errors pass.
    """
    try:
        yield
    except MemoryShortageError:
        raise
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        is_device = isinstance(error, torch.OutOfMemoryError)
        is_host = isinstance(error, MemoryError) or HOST_ALLOCATOR in str(error)
        if not (is_device or is_host):
            raise
        whose = "device" if is_device else "host"
        message = str(error).strip() or type(error).__name__
        raise MemoryShortageError(f"The {whose} is out of memory: {message}\n{remedy}") from error


def halve_until_it_fits(
    attempt: Callable[[int], T],
    size: int,
    *,
    device: torch.device,
    discard: Callable[[], None],
    note: Callable[[int], str],
) -> T:
    """The result of `attempt` with the largest size that fits, starting with `size`.

    After torch.OutOfMemoryError, and no other error, `discard` undoes the attempt, caches are
    freed, torch's random states restored, and half the size is tried, down to 1, where it
    raises MemoryShortageError.
    """
    of_host = torch.get_rng_state()
    # That of the device is kept on the host: no synchronization.
    of_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    while True:
        try:
            return attempt(size)
        except torch.OutOfMemoryError as error:
            if size <= 1:
                raise MemoryShortageError(f"{note(size)}\n{error}") from error
        # Outside of the except block the traceback no longer keeps frames and their tensors alive.
        size //= 2
        discard()
        gc.collect()  # frames of the traceback may form cycles
        torch.set_rng_state(of_host)
        if of_device is not None:
            torch.cuda.empty_cache()
            torch.cuda.set_rng_state(of_device, device)


def shortage_note(size: int, inputs: Tensor) -> str:
    return (
        f"Out of memory with {size} of {len(inputs)} rows of {tuple(inputs.shape[1:])} at a time, "
        "the smallest micro-batch. Use a shorter sequence, activation recomputation, a "
        "precision with less state, or a smaller model."
    )


@contextmanager
def raise_together(size: int, inputs: Tensor, ranks: Ranks) -> Iterator[None]:
    """Raise MemoryShortageError where one of several ranks is out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryShortageError(
            f"Out of memory on rank {ranks.rank} with {size} of its {len(inputs)} rows of "
            f"{tuple(inputs.shape[1:])} at a time. The other {ranks.size - 1} ranks are in the "
            "same passes, so it is not retried with fewer: set micro_batch to "
            f"{max(size // 2, 1)}, or shard the weights (parallel.strategy fsdp).\n{error}"
        ) from error
