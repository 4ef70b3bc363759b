"""Batches prefetched by one thread and moved to the device while it computes.

    rows   windows in a batch of this rank      width   tokens of a window, sequence + 1
    steps  batches that are read and moved at once, a chunk

For a CUDA device the thread fills at most `depth` pinned buffers and copies them on a stream of its
own. A buffer is refilled once the event after its copy has completed, so neither host nor device
waits while the thread keeps up; `wait_s` shows whether it does. For the CPU each chunk has its own
memory, so batches stay valid.

Small batches are read several at a time: handing over between two Python threads takes about 50 us,
more than filling a batch of a dozen windows.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from torchtally.checkpoints.closing import Closing

DEPTH = 4
JOIN_S = 10.0
"""How long `close` waits for a disk read that hangs."""

Fill = Callable[[int, Int64[np.ndarray, "steps rows width"]], None]
"""Fills in the tokens of batches from a step on. Called by the thread, in step order."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The windows of one step."""

    step: int
    tokens: Int64[Tensor, "rows width"]
    wait_s: float
    """How long the training loop waited for this batch."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The batches of some steps on their way to the consumer."""

    tokens: Int64[Tensor, "steps rows width"]
    copied: "torch.cuda.Event | None" = None
    """Recorded after its copy, on CUDA."""


@dataclass(slots=True)
class _Lane:
    """State shared by the thread and its consumer. The thread holds no reference to the Ring, so
    an unclosed Ring can be collected, which ends the thread.
    """

    ready: "queue.SimpleQueue[_Chunk | BaseException]" = field(default_factory=queue.SimpleQueue)
    """At last StopIteration, or the error of a read that failed."""
    permits: "queue.SimpleQueue[None]" = field(default_factory=queue.SimpleQueue)
    """One for each chunk that may be read."""
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True
        self.permits.put(None)


class Ring(Closing):
    """Iterates over the batches of steps [first_step, end_step); endless without an end.

    Use it as a context manager, which ends the thread. Errors of `fill` are raised here, at the
    first step of the chunk that failed, with the thread's traceback. At most `depth` chunks are
    ready or being read, besides the one that batches are taken from.
    """

    def __init__(
        self,
        fill: Fill,
        *,
        rows: int,
        width: int,
        device: torch.device | str = "cpu",
        first_step: int = 0,
        end_step: int | None = None,
        depth: int = DEPTH,
        chunk_steps: int = 1,
    ) -> None:
        self.waited_s = 0.0
        """Total wait so far."""
        self._device = torch.device(device)
        self._step = first_step
        self._chunk: Iterator[Tensor] = iter(())
        self._copied: torch.cuda.Event | None = None
        self._is_over = False
        self._lane = _Lane()
        for _ in range(depth):
            self._lane.permits.put(None)
        maker = _Maker((chunk_steps, rows, width), self._device, depth)
        self._thread = threading.Thread(
            target=_make_ahead,
            args=(self._lane, fill, maker, first_step, end_step, chunk_steps),
            name="tally-data",
            daemon=True,
        )
        self._release = weakref.finalize(self, self._lane.close)
        self._thread.start()

    def __iter__(self) -> Iterator[TokenBatch]:
        return self

    def __next__(self) -> TokenBatch:
        asked_s = time.perf_counter()
        tokens = next(self._chunk, None)
        if tokens is None:
            tokens = self._first_of_next_chunk()
        wait_s = time.perf_counter() - asked_s
        if self._copied is not None:
            # The device waits on its stream, not the host. The tensor was allocated on the copy
            # stream: without record_stream the caching allocator would reuse its block as soon as
            # it is freed, while this stream may still read it.
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(self._copied)
            tokens.record_stream(stream)
        self.waited_s += wait_s
        self._step += 1
        return TokenBatch(self._step - 1, tokens, wait_s)

    def _first_of_next_chunk(self) -> Tensor:
        if self._is_over:
            raise StopIteration
        arrival = self._lane.ready.get()
        if isinstance(arrival, BaseException):
            self.close()
            raise arrival
        self._lane.permits.put(None)
        self._chunk, self._copied = iter(arrival.tokens.unbind(0)), arrival.copied
        return next(self._chunk)

    def close(self) -> None:
        """End the thread and the iteration."""
        self._is_over = True
        self._chunk = iter(())
        self._release()
        self._thread.join(JOIN_S)


def _make_ahead(
    lane: _Lane,
    fill: Fill,
    maker: "_Maker",
    first_step: int,
    end_step: int | None,
    chunk_steps: int,
) -> None:
    """The thread's function: a chunk per permit, until no step is left or the ring is closed."""
    try:
        step = first_step
        while end_step is None or step < end_step:
            lane.permits.get()
            if lane.is_closed:
                return
            steps = chunk_steps if end_step is None else min(chunk_steps, end_step - step)
            lane.ready.put(maker.make(step, steps, fill))
            step += steps
        lane.ready.put(StopIteration())
    except BaseException as error:
        lane.ready.put(error)


class _Maker:
    """Reads chunks: into memory of their own, or for a CUDA device into pinned buffers, used
    round-robin, and from there to the device.
    """

    def __init__(self, shape: tuple[int, int, int], device: torch.device, depth: int) -> None:
        self._shape, self._device, self._next = shape, device, 0
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._slots = [
                torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(depth)
            ]
            self._copied: list[torch.cuda.Event | None] = [None] * depth

    def make(self, step: int, steps: int, fill: Fill) -> _Chunk:
        """The chunk of so many steps from this one on."""
        if self._device.type != "cuda":
            tokens = torch.empty((steps, *self._shape[1:]), dtype=torch.int64)
            fill(step, tokens.numpy())
            return _Chunk(tokens)
        at, self._next = self._next, (self._next + 1) % len(self._slots)
        before, slot = self._copied[at], self._slots[at][:steps]
        if before is not None:
            before.synchronize()
        fill(step, slot.numpy())
        with torch.cuda.stream(self._stream):
            tokens = slot.to(self._device, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        self._copied[at] = copied
        return _Chunk(tokens, copied)
