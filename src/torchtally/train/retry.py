"""Memory that does not suffice: the same step with fewer rows at a time, or an error that helps.

Only torch.OutOfMemoryError is tried again. Memory of the host is another matter: PyTorch says that
it is short by a plain RuntimeError, which nothing but its words tells from any other, and where
Linux overcommits it says nothing, for then the kernel kills the process. So such an error ends the
run, with a word about what to do.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from torchtally.errors import TallyError

HOST_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
"""What its error says: c10/core/impl/alloc_cpu.cpp."""

T = TypeVar("T")


class MemoryShortageError(TallyError, torch.OutOfMemoryError):
    """Memory does not suffice, and what could be done about it has been done.

    It is torch's own error, too, for those who look for that one.
    """


@contextmanager
def explain_shortage(remedy: str) -> Iterator[None]:
    """Whatever fails in here for want of memory raises MemoryShortageError, with the remedy.

    For the whole of a run: what is raised within is the device's torch.OutOfMemoryError, Python's
    and NumPy's MemoryError, or the RuntimeError of PyTorch's host allocator. Others pass.
    """
    try:
        yield
    except MemoryShortageError:
        raise
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        whose = _whose_memory(error)
        if whose is None:
            raise
        message = str(error).strip() or type(error).__name__
        raise MemoryShortageError(f"{whose} out of memory: {message}\n{remedy}") from error


def _whose_memory(error: BaseException) -> str | None:
    """Which memory an error says is short; None if it says nothing of the kind."""
    if isinstance(error, torch.OutOfMemoryError):
        return "The device is"
    is_host = isinstance(error, MemoryError) or HOST_ALLOCATOR in str(error)
    return "The host is" if is_host else None


def halve_until_it_fits(
    attempt: Callable[[int], T],
    size: int,
    *,
    least: int,
    device: torch.device,
    discard: Callable[[], None],
    note: Callable[[int], str],
) -> tuple[int, T]:
    """The size that fits, and the result of `attempt` with it; `size` is tried first.

    After torch.OutOfMemoryError, and no other error, `discard` undoes the attempt, caches are
    freed, torch's random numbers set back, and half the size tried, down to `least`: there it is
    MemoryShortageError, with a note. So there are log2(size / least) + 2 attempts at most.
    """
    randomness = _randomness(device)
    while True:
        try:
            return size, attempt(size)
        except torch.OutOfMemoryError as error:
            if size <= least:
                raise MemoryShortageError(f"{note(size)}\n{error}") from error
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
