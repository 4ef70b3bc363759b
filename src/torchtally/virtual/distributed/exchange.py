"""Messages between ranks that are simulated at once: the values that are known cross over.

What is computed on the GPU from data is unknown on every rank. Shapes, sizes and objects, which
pipeline stages tell each other, are known where they are sent, and needed where they are received.
"""

import hashlib
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.storage import virtual_of
from torchtally.virtual.value_keeper import has_value


class Exchange(Protocol):
    """Destinations of messages, and their sources."""

    def simulates(self, rank: int) -> bool: ...
    def seek_help(self, rank: int) -> bool:
        """Has a rank run for what it sends; False where it does not."""

    def send(self, to: int, key: str, value: bytes | None) -> None: ...
    def receive(self, source: int, key: str) -> bytes | None:
        """Waits for it."""

    def announce(self, key: str, value: bytes | None) -> None: ...
    def hear(self, source: int, key: str) -> bytes | None:
        """Waits for what another rank announces."""


class Messages:
    """Numbers the messages of each pair of ranks in each group: the first of all sent is the first
    of all received.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def send(self, group: Any, peer: int, tensors: list[Tensor]) -> None:
        """`peer` is a rank of the group."""
        to = dist.get_global_rank(group, peer)
        key = self._key(group, to, "to")
        if crosses(tensors):
            self.exchange.send(to, key, content_of(tensors[0]))

    def receive(
        self, group: Any, peer: int, tensors: list[Tensor], assign: Callable[[Tensor, Tensor], None]
    ) -> Callable[[], None]:
        """What takes the value over, when the receiver waits for it; once."""
        source = dist.get_global_rank(group, peer)
        key = self._key(group, source, "from")
        if not crosses(tensors) or not self.exchange.simulates(source):
            return lambda: None
        pending = [tensors[0]]

        def arrive() -> None:
            if pending:
                tensor = pending.pop()
                content = self.exchange.receive(source, key)
                if content is not None:
                    with private.without_dispatch_modes():
                        assign(tensor, tensor_of(content, tensor))

        return arrive

    def share(self, group: Any, source: int, objects: Any) -> Any:
        """Python objects that a rank has, told to all others of a group: what they are. None where
        they are not known.
        """
        key = self._key(group, source, "shared")
        if source == dist.get_rank():
            self.exchange.announce(key, pickled(objects))
            return objects
        content = self.exchange.hear(source, key) if self.exchange.seek_help(source) else None
        return None if content is None else pickle.loads(content)

    def _key(self, group: Any, other: int, way: str) -> str:
        """The same for sender and receiver: the group by its name and ranks, and a number."""
        ranks = dist.get_process_group_ranks(group)
        name = hashlib.sha256(f"{group.group_name} {ranks}".encode()).hexdigest()[:16]
        self._counts[name, other, way] += 1
        return f"{name}-{self._counts[name, other, way]}"


MOST_VALUE_BYTES = 1 << 24
"""Larger messages are data."""


def crosses(tensors: list[Tensor]) -> bool:
    """Whether the value of a message may be known: integers, and what is on the host."""
    if len(tensors) != 1 or tensors[0].numel() * tensors[0].itemsize > MOST_VALUE_BYTES:
        return False
    return not tensors[0].is_floating_point() or virtual_of(tensors[0]) is None


def content_of(tensor: Tensor) -> bytes | None:
    """None where the value is not known."""
    if not has_value(tensor):
        return None
    real = values.real_of(tensor)
    if real is None:
        return None
    flat = real.detach().contiguous().view(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def pickled(objects: Any) -> bytes | None:
    """None of what the script's own ranks could not send either."""
    try:
        return pickle.dumps(objects)
    except Exception:  # whatever an object's own code raises: the script's call raises it, too
        return None


def tensor_of(content: bytes, like: Tensor) -> Tensor:
    real = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    return real.view(like.dtype).reshape(like.shape)
