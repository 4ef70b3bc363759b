"""Copies of tensors on the host, as they were at one moment, whatever training does next.

The buffers are kept from one copy to the next: making them anew costs more than filling them. They
take as many bytes as what is saved, on a GPU's host pinned ones.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Snapshot:
    """Buffers on the host, and what is on its way into them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

    @property
    def size_bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """The numbers of now. The former ones must not be in use any more.

        Of a DTensor this rank's shard. From a GPU the copies are queued behind the work of now and
        before that to come; the host does not wait for them.
        """
        devices: set[torch.device] = set()
        for name, tensor in tensors.items():
            local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
            self._buffer(name, local).copy_(local, non_blocking=True)
            if local.device.type == "cuda":
                devices.add(local.device)
        for name in self._buffers.keys() - tensors.keys():
            del self._buffers[name]
        self._copied = [_event_on(device) for device in devices]

    def copies(self) -> dict[str, Tensor]:
        """The copies, once they are whole."""
        for event in self._copied:
            event.synchronize()
        return dict(self._buffers)

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or (buffer.shape, buffer.dtype) != (like.shape, like.dtype):
            is_pinned = like.device.type == "cuda"
            buffer = torch.empty(like.shape, dtype=like.dtype, pin_memory=is_pinned)
            self._buffers[name] = buffer
        return buffer


def _event_on(device: torch.device) -> "torch.cuda.Event":
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
