"""How ranks find each other: torchrun's environment, and stores that ask nobody."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch.distributed as dist

from torchtally.trace import World

MASTER_PORT = 29500
"""torchrun's default."""


def environment(world: World) -> dict[str, str]:
    """What torchrun sets for each of its workers (torch/distributed/elastic/agent)."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(min(world.gpus_per_node, world.size)),
        "GROUP_RANK": str(world.node),
        "GROUP_WORLD_SIZE": str(world.nodes),
        "ROLE_RANK": str(world.rank),
        "ROLE_WORLD_SIZE": str(world.size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(MASTER_PORT),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


class LocalStore(dist.HashStore):  # type: ignore[name-defined,misc]
    """Stands for every store that ranks share: what a rank sets, it finds; nobody waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def wait(self, *args: Any) -> None:
        """The keys of other ranks are taken to be there."""

    def get(self, key: str) -> bytes:
        """Of a key that another rank would have set: nothing."""
        value: bytes = super().get(key) if self.check([key]) else b""
        return value


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, **kwargs: Any
) -> Iterator[tuple[LocalStore, int, int]]:
    """Stands for torch.distributed.rendezvous: (store, rank, size) at once, without a network.

    Raises ValueError where neither arguments nor url nor environment say rank and size, in torch's
    words (torch/distributed/rendezvous.py).
    """
    query = dict(parse_qsl(urlparse(url).query))

    def number(given: int, name: str) -> int:
        if given >= 0:
            return given
        if name in query:
            return int(query[name])
        variable = name.upper()
        if not url.startswith("env://") or variable not in os.environ:
            raise ValueError(
                f"Error initializing torch.distributed using {url.partition('?')[0]} rendezvous: "
                f"environment variable {variable} expected, but not set"
            )
        return int(os.environ[variable])

    yield LocalStore(), number(rank, "rank"), number(world_size, "world_size")
