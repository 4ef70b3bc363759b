"""Storages of a run by number: their births and deaths, what they are for, and their names."""

from collections.abc import Collection

import torch

from torchtally.memory.allocator import Block
from torchtally.trace import Role, Storage
from torchtally.trace.storage import allocated_bytes
from torchtally.virtual.storage import VirtualStorage

Birth = tuple[str, int, int, int, int, int]
"""(device, requested bytes, tick, stream, spare bytes, pool)"""


class StorageRecords:
    """Storages are numbered in the order of their births."""

    def __init__(self) -> None:
        self.births: list[Birth] = []
        self.deaths: dict[int, int] = {}
        self.roles: dict[int, Role] = {}
        self.names: dict[int, str] = {}
        self.whole_elements: dict[int, int] = {}
        """Of shards: how many elements the whole has."""
        self._shards: dict[int, dict[int, int]] = {}
        """Elements of the whole, by storage and by the shard's offset in it."""
        self._workspaces: dict[int, int] = {}
        """Numbers of kept workspaces, by address."""

    def born(self, storage: VirtualStorage, tick: int) -> None:
        storage.number = len(self.births)
        device, block = str(storage.home.device), storage.block
        stream = spare_bytes = pool = 0
        if block is not None:
            stream, pool = block.stream, sum(block.pool.owner)
            spare_bytes = block.size - allocated_bytes(storage.requested_bytes)
        self.births.append((device, storage.requested_bytes, tick, stream, spare_bytes, pool))

    def shard_added(self, number: int, offset: int, whole_elements: int) -> None:
        """Told of a parameter's shard in a storage, which may hold those of many."""
        shards = self._shards.setdefault(number, {})
        shards[offset] = whole_elements
        self.whole_elements[number] = sum(shards.values())

    def workspace_born(self, device: torch.device, block: Block, name: str, tick: int) -> int:
        """Its number."""
        number, requested_bytes = len(self.births), block.requested_bytes
        spare_bytes = block.size - allocated_bytes(requested_bytes)
        self.births.append(
            (str(device), requested_bytes, tick, block.stream, spare_bytes, sum(block.pool.owner))
        )
        self.roles[number] = Role.WORKSPACE
        self.names[number] = name
        return number

    def workspace_kept(self, device: torch.device, block: Block, name: str, tick: int) -> None:
        """Told of a workspace that is kept until it is dropped."""
        self._workspaces[block.address] = self.workspace_born(device, block, name, tick)

    def workspace_dropped(self, block: Block, tick: int) -> None:
        number = self._workspaces.pop(block.address, None)
        if number is not None:
            self.deaths[number] = tick

    def facts(self, trained: Collection[int]) -> tuple[Storage, ...]:
        return tuple(
            Storage(
                number, device, requested, born, self.deaths.get(number),
                self.roles.get(number), self.names.get(number, ""), stream, spare,
                number in trained, self.whole_elements.get(number, 0), pool,
            )
            for number, (device, requested, born, stream, spare, pool) in enumerate(self.births)
        )  # fmt: skip
