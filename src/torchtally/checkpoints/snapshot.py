"""Copies of tensors on the host, unaffected by what training does next.

The buffers are reused: allocating them costs more than filling them. They take as many bytes as the
saved state; for a GPU they are pinned.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from torchtally.checkpoints.shards import local_part


class Snapshot:
    """Host buffers, and the copies in flight to them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the present values; the previous copies must no longer be in use.

        Of a DTensor, this rank's shard. Copies from a GPU are queued on its current stream, after
        the work already issued; the host does not wait for them.
        """
        devices: set[torch.device] = set()
        for name, tensor in tensors.items():
            local = local_part(tensor.detach())
            self._buffer(name, local).copy_(local, non_blocking=True)
            if local.device.type == "cuda":
                devices.add(local.device)
        for name in self._buffers.keys() - tensors.keys():
            del self._buffers[name]
        self._copied = [_event_on(device) for device in devices]

    def copies(self) -> dict[str, Tensor]:
        """The copies, after waiting for the transfers."""
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
