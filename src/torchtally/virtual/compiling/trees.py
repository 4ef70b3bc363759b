"""CUDA graph trees (`mode="reduce-overhead"`): PyTorch's own, on the virtual GPU's memory.

Which graph follows which, what is warmed up, captured and replayed, and which results are live is
decided in torch/_inductor/cudagraph_trees.py. It asks C++ for the allocator's private pools, and
for tensors at an address: a replay's results lie where the capture's did, in memory that the pool
has and no tensor owns.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.memory.allocator import PoolId, PoolState
from torchtally.torch_private import without_dispatch_modes
from torchtally.virtual.depth import as_meta
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn, instead_of
from torchtally.virtual.storage import Overwritten, VirtualStorage


class Trees:
    """What the trees of one session ask C++ for, in Python."""

    def __init__(self, mode: VirtualDispatch, compiler: Any) -> None:
        self.mode, self.compiler = mode, compiler

    def stand_ins(self) -> list[StandIn]:
        answers: dict[str, Any] = {
            "begin_in_thread": self.begin_in_thread,
            "end": lambda device, pool: self.mode.gpus[device].end_pool(pool),
            "release": lambda device, pool: self.mode.gpus[device].release_pool(pool),
            "get_state": lambda device, pool: self.mode.gpus[device].pool_state(pool),
            "set_state": self.set_state,
            "check_live": self.check_live,
            "new_storage": self.new_storage,
            "new_tensor": self.new_tensor,
            "free": self.free,
            "are_at": are_at,
            # The storage is told, too, by all of its tensors.
            "set_tensor_error": lambda tensor, message: None,
            "set_storage_error": self.set_storage_error,
            "owns": lambda reference: self.compiler.storage_of(reference).virtual.block is not None,
            "get_conv_cache": lambda: True,
            "set_conv_cache": lambda value: None,
        }
        names = self.compiler.TREE_CALLS
        return [instead_of(names[name], answer, is_new=True) for name, answer in answers.items()]

    def begin_in_thread(self, device: int, pool: PoolId) -> None:
        thread = threading.get_ident()
        self.mode.gpus[device].begin_pool(pool, lambda stream: threading.get_ident() == thread)

    def set_state(
        self, device: int, state: PoolState, stale: Sequence[int], live: Sequence[int]
    ) -> None:
        """`live`: storages, by weak references, that own their blocks from now on."""
        storages = [self.compiler.storage_of(reference).virtual for reference in live]
        self.mode.gpus[device].restore_pool(state, storages)

    def check_live(self, device: int, pool: PoolId, addresses: set[int]) -> bool:
        state = self.mode.gpus[device].pool_state(pool)
        blocks = (block for segment in state.segments for block in segment)
        return {block.address for block in blocks if block.is_allocated} == addresses

    # Tensors at an address.

    def new_storage(self, address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
        with without_dispatch_modes(), as_meta():
            storage = torch.UntypedStorage(nbytes, device="meta")
        home = self.mode.gpus[device.index or 0]
        number = home.pooled.get(address, -1)
        storage.virtual = VirtualStorage.lend(home, address, nbytes, number)  # type: ignore[attr-defined]
        return storage

    def new_tensor(self, metadata: dict[str, Any], storage: torch.UntypedStorage) -> Tensor:
        with without_dispatch_modes(), as_meta():
            tensor = torch.empty(0, dtype=metadata["dtype"], device="meta")
            return tensor.set_(
                storage, metadata["storage_offset"], metadata["size"], metadata["stride"]
            )

    def free(self, reference: int) -> None:
        """The next run of the graph will write there: the storage does not own it any more."""
        virtual = self.compiler.storage_of(reference).virtual
        virtual.home.abandon(virtual)

    def set_storage_error(self, reference: int, message: str) -> None:
        virtual = self.compiler.storage_of(reference).virtual
        virtual.home = Overwritten(virtual.home.device, message)


def are_at(tensors: Sequence[Any], addresses: Sequence[int | None], places: Sequence[int]) -> bool:
    """Whether tensors at these places of the list are still at these addresses."""
    for place in places:
        tensor = tensors[place]
        if not isinstance(tensor, Tensor):
            return False
        if tensor.data_ptr() != addresses[place]:
            return False
    return True
