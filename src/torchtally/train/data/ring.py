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

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

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


class Ring(Closing):
    """Iterates over the batches of these steps; a context manager, which ends the thread.

    Errors of `fill` are raised here, at the first step of the chunk that failed, with the thread's
    traceback. At most `depth` chunks are ready or being read, besides the one that batches are
    taken from.
    """

    def __init__(
        self,
        fill: Fill,
        steps: range,
        *,
        rows: int,
        width: int,
        device: torch.device | str = "cpu",
        depth: int = DEPTH,
        chunk_steps: int = 1,
    ) -> None:
        self._fill, self._steps, self._device = fill, steps, torch.device(device)
        self._shape = (chunk_steps, rows, width)
        self._step = steps.start
        self._chunk: Iterator[Tensor] = iter(())
        self._copied: torch.cuda.Event | None = None
        self._is_closed = False
        self._ready: SimpleQueue[_Chunk | BaseException] = SimpleQueue()
        self._permits = threading.Semaphore(depth)
        """One for each chunk that may be read."""
        self._slots: list[tuple[Tensor, torch.cuda.Event]] = []
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)
            self._slots = [
                (torch.empty(self._shape, dtype=torch.int64, pin_memory=True), torch.cuda.Event())
                for _ in range(depth)
            ]
        self._thread = threading.Thread(target=self._read_ahead, name="tally-data", daemon=True)
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
        self._step += 1
        return TokenBatch(self._step - 1, tokens, wait_s)

    def _first_of_next_chunk(self) -> Tensor:
        if self._is_closed:
            raise StopIteration
        arrival = self._ready.get()
        if isinstance(arrival, BaseException):
            self.close()
            raise arrival
        self._permits.release()
        self._chunk, self._copied = iter(arrival.tokens.unbind(0)), arrival.copied
        return next(self._chunk)

    def close(self) -> None:
        """End the thread and the iteration."""
        self._is_closed = True
        self._chunk = iter(())
        self._permits.release()
        self._thread.join(JOIN_S)

    def _read_ahead(self) -> None:
        """The thread: a chunk per permit, until no step is left or the ring is closed."""
        most = self._shape[0]
        try:
            for number, step in enumerate(range(self._steps.start, self._steps.stop, most)):
                self._permits.acquire()
                if self._is_closed:
                    return
                steps = min(most, self._steps.stop - step)
                self._ready.put(self._read(step, steps, number))
            self._ready.put(StopIteration())
        except BaseException as error:
            self._ready.put(error)

    def _read(self, step: int, steps: int, number: int) -> _Chunk:
        """A chunk of so many steps: in memory of its own, or for a CUDA device by a pinned buffer,
        used round-robin, from which it is copied to the device.
        """
        if not self._slots:
            tokens = torch.empty((steps, *self._shape[1:]), dtype=torch.int64)
            self._fill(step, tokens.numpy())
            return _Chunk(tokens)
        buffer, copied = self._slots[number % len(self._slots)]
        copied.synchronize()  # of its last copy, if there was one
        self._fill(step, buffer[:steps].numpy())
        with torch.cuda.stream(self._stream):
            tokens = buffer[:steps].to(self._device, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        self._slots[number % len(self._slots)] = buffer, copied
        return _Chunk(tokens, copied)
