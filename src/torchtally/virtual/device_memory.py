"""The memory of one virtual GPU: a caching allocator, and its observer."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from torchtally.memory.allocator import (
    Block,
    CachingAllocator,
    OutOfMemoryError,
    PoolId,
    PoolState,
    Takes,
    checkpoint,
    restore,
)
from torchtally.memory.workspace import Workspace
from torchtally.virtual.storage import VirtualStorage


class MemoryObserver(Protocol):
    """Notified of every allocation and free on a virtual GPU, in order."""

    def storage_born(self, storage: VirtualStorage) -> None: ...

    def storage_died(self, storage: VirtualStorage) -> None: ...

    def workspace_taken(self, device: torch.device, block: Block, name: str) -> None:
        """A library allocated memory, and keeps it."""

    def workspace_dropped(self, block: Block) -> None: ...

    def workspace_used(self, device: torch.device, block: Block, name: str) -> None:
        """The current operator allocated memory, and has freed it."""

    def reserved_changed(self, device: torch.device, reserved_bytes: int) -> None: ...

    def cache_emptied(self, device: torch.device) -> None: ...

    def host_waited(self) -> None:
        """The host waited until the device had done everything issued so far."""

    def memory_refused(
        self, device: torch.device, requested_bytes: int, error: OutOfMemoryError
    ) -> None: ...


class DeviceMemory:
    """What is allocated and reserved on one virtual GPU, by the allocator's rules.

    Storages die when their last Python reference does, also in the middle of another allocation
    (the garbage collector may run at any bytecode) and in other threads: a free that comes while
    the allocator is busy is queued until it is done.
    """

    def __init__(
        self,
        device: torch.device,
        allocator: CachingAllocator,
        observer: MemoryObserver,
        *,
        stream: Callable[[], int] = lambda: 0,
    ) -> None:
        self.device = device
        self.allocator = allocator
        self.observer: MemoryObserver | None = observer
        self._stream = stream
        """The current stream's number."""
        self._reserved_bytes = 0
        self._frees = 0
        """How often memory was returned to the driver (cudaFree)."""
        self.pooled: dict[int, int] = {}
        """Numbers of the storages that were last at an address in private pools."""
        self._kept: dict[tuple[str, bool, int], Block] = {}
        """Workspaces by (what for, the handle is autograd's, stream)."""
        self._lock = threading.RLock()
        self._is_busy = False
        self._freed: deque[Block] = deque()

    @property
    def allocated_bytes(self) -> int:
        return self.allocator.statistics.all.bytes

    @property
    def peak_allocated_bytes(self) -> int:
        return self.allocator.statistics.all.bytes_peak

    @property
    def reserved_bytes(self) -> int:
        return self.allocator.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.allocator.statistics.all.reserved_bytes.peak

    # Storages.

    def allocate(self, storage: VirtualStorage) -> None:
        """Allocate a block for a storage. Raises torch.OutOfMemoryError."""
        if storage.requested_bytes:
            storage.block = self._allocate(storage.requested_bytes)
        if self.observer is not None:
            self.observer.storage_born(storage)
        if self.allocator.private_pools.are_filling:
            self.pooled[storage.address] = storage.number

    def free(self, storage: VirtualStorage) -> None:
        block, storage.block = storage.block, None
        if block is None and storage.requested_bytes:
            return  # lent, or its allocation ran out of memory
        if self.observer is not None and not storage.is_lent:
            self.observer.storage_died(storage)
        if block is not None:
            self._free(block)

    def abandon(self, storage: VirtualStorage) -> None:
        """Its memory is free from now on, and the storage keeps the address."""
        storage.lent_address = storage.address
        self.free(storage)

    def resize(self, storage: VirtualStorage, requested_bytes: int) -> None:
        """CUDA allocates the new block before it frees the old one, whose bytes it copies."""
        block = self._allocate(requested_bytes) if requested_bytes else None
        self.free(storage)
        storage.requested_bytes, storage.block = requested_bytes, block
        if self.observer is not None:
            self.observer.storage_born(storage)

    def record_stream(self, storage: VirtualStorage, stream: int) -> None:
        """Another stream uses the storage: its block may not be given away until that is done."""
        if storage.block is not None:
            self.allocator.record_stream(storage.block, stream)

    # Memory without a tensor.

    def take_workspace(self, requested_bytes: int, name: str, stream: int | None = None) -> Block:
        """Memory that a library asks for and keeps; None: on the current stream."""
        block = self._allocate(requested_bytes, stream)
        if self.observer is not None:
            self.observer.workspace_taken(self.device, block, name)
        return block

    def need_library(self, workspace: Workspace, *, is_backward: bool) -> None:
        """A library's handle of this thread is used on the current stream.

        PyTorch's autograd runs a CUDA backward pass in a thread of its own, with its own handle.
        """
        name = workspace.kind.name
        handle = (name, is_backward, self._stream())
        if handle not in self._kept:
            self._kept[handle] = self.take_workspace(workspace.bytes, name)

    def clear_libraries(self) -> None:
        """Give back the workspaces of all cuBLAS handles, as `_cuda_clearCublasWorkspaces`."""
        while self._kept:
            self.drop_workspace(self._kept.popitem()[1])

    def drop_workspace(self, block: Block) -> None:
        """Free a block taken by `take_workspace`."""
        if self.observer is not None:
            self.observer.workspace_dropped(block)
        self._free(block)

    def use_workspaces(self, sizes: tuple[tuple[int, str], ...]) -> None:
        """Scratch memory of the current operator: (bytes, name) each."""
        self.free_scratch(self.take_scratch(sizes))

    def take_scratch(self, sizes: tuple[tuple[int, str], ...]) -> list[Block]:
        """Takes scratch memory for the current operator, which frees it."""
        blocks = []
        for requested_bytes, name in sizes:
            block = self._allocate(requested_bytes)
            blocks.append(block)
            if self.observer is not None:
                self.observer.workspace_used(self.device, block, name)
        return blocks

    def free_scratch(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            self._free(block)

    # Private pools of CUDA graphs.

    def begin_pool(self, pool_id: PoolId, takes: Takes) -> None:
        """Serves requests on streams that the pool takes from this pool, from now on."""
        self.allocator.private_pools.begin(pool_id, takes)

    def end_pool(self, pool_id: PoolId) -> None:
        self.allocator.private_pools.end(pool_id)

    def release_pool(self, pool_id: PoolId) -> None:
        self.allocator.private_pools.release(pool_id)

    def pool_state(self, pool_id: PoolId) -> PoolState:
        with self._lock:
            return checkpoint(self.allocator, pool_id)

    def restore_pool(self, state: PoolState, storages: Sequence[VirtualStorage]) -> None:
        """Put a pool back to a state; those of its blocks that storages lie in are theirs."""
        by_address = {storage.address: storage for storage in storages}

        def work() -> None:
            for block in restore(self.allocator, state).allocated:
                storage = by_address.get(block.address)
                if storage is not None:
                    storage.block = block

        self._at_work(work)

    def free_address(self, address: int) -> None:
        """A block without an owner."""
        block = self.allocator.block_at(address)
        assert block is not None, "only what a restored pool has is freed by its address"
        self._free(block)

    # The device.

    def synchronize(self) -> None:
        """The host waits for the device: all streams have completed."""
        if self.allocator.has_pending:
            self._at_work(self.allocator.synchronize)
        if self.observer is not None:
            self.observer.host_waited()

    def empty_cache(self) -> None:
        if self.observer is not None:
            self.observer.cache_emptied(self.device)
        self._at_work(self.allocator.empty_cache)

    # The allocator, one caller at a time.

    def _allocate(self, requested_bytes: int, stream: int | None = None) -> Block:
        stream = self._stream() if stream is None else stream
        try:
            with self._lock:
                self._is_busy = True
                try:
                    while self._freed:
                        self.allocator.free(self._freed.popleft())
                    block = self.allocator.allocate(requested_bytes, stream)
                finally:
                    self._is_busy = False
        except OutOfMemoryError as error:
            self._drain()
            self._notice_reserved()
            if self.observer is not None:
                self.observer.memory_refused(self.device, requested_bytes, error)
            raise torch.OutOfMemoryError(str(error)) from None
        self._drain()  # outside the lock: a thread that found it taken has queued its block
        self._notice_reserved()
        return block

    def _free(self, block: Block) -> None:
        self._freed.append(block)
        self._drain()

    def _drain(self) -> None:
        """Free queued blocks, unless the allocator is busy, which then does so afterwards."""
        while self._freed and not self._is_busy and self._lock.acquire(blocking=False):
            self._is_busy = True
            try:
                while self._freed:
                    self.allocator.free(self._freed.popleft())
            finally:
                self._is_busy = False
                self._lock.release()

    def _at_work(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._is_busy = True
            try:
                work()
            finally:
                self._is_busy = False
        self._drain()
        self._notice_reserved()

    def _notice_reserved(self) -> None:
        frees = self.allocator.statistics.device_frees
        if frees > self._frees and self.observer is not None:
            self.observer.host_waited()  # cudaFree waits for the device
        self._frees = frees
        reserved_bytes = self.allocator.reserved_bytes
        if reserved_bytes != self._reserved_bytes:
            self._reserved_bytes = reserved_bytes
            if self.observer is not None:
                self.observer.reserved_changed(self.device, reserved_bytes)
