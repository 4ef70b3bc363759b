"""How ranks find each other: torchrun's environment, and a rendezvous without a network."""

import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlparse

from torchtally.trace import World
from torchtally.virtual.distributed.stores import LocalStore

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


def rendezvous_at(store: type[LocalStore]) -> Callable[..., Iterator[tuple[LocalStore, int, int]]]:
    """Stands for torch.distributed.rendezvous: (store, rank, size) at once."""

    def rendezvous_there(url: str, *args: Any, **kwargs: Any) -> Any:
        yield store(), *rank_and_size(url, *args, **kwargs)

    return rendezvous_there


def rank_and_size(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> tuple[int, int]:
    """Rank and size as torch.distributed.rendezvous finds them.

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

    return number(rank, "rank"), number(world_size, "world_size")
