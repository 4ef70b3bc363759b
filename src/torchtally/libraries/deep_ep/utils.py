"""Events of exchanges, which the current stream can be told to wait for."""

from typing import Any

import torch


class EventHandle:
    """An event on the current stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event()
        self.event.record()

    def current_stream_wait(self) -> None:
        self.event.wait()


class EventOverlap:
    def __init__(self, event: EventHandle | None = None, extra_tensors: Any = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        assert self.event is not None
        self.event.current_stream_wait()
        if release_handle:
            self.event = None

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.event is not None:
            self.current_stream_wait()
