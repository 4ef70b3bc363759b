"""Symmetric memory: tensors that the other GPUs of a node read and write over their links.

PyTorch's own functions (`torch.distributed._symmetric_memory`) run: asynchronous tensor parallelism
copies its neighbours' shards on one stream while it multiplies those that came on the other. What
is replaced is the handle that C++ makes of CUDA's: it gives tensors that stand for the other ranks'
memory and hold none here. A copy from or to one of them is recorded as `symm_mem.get` or
`symm_mem.put`, over the link of the two GPUs; a barrier is a meeting of the group.

A tensor in symmetric memory is counted among the allocator's bytes, where PyTorch 2.13 allocates
what a script asks for (a workspace of its own functions comes from the driver).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.trace import Literal
from torchtally.virtual.dispatch import SPECIAL, Handler, VirtualDispatch
from torchtally.virtual.distributed import token_exchange
from torchtally.virtual.invocation import META, Invocation
from torchtally.virtual.operators import Operator, kernel
from torchtally.virtual.shapes import SHAPES
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import VirtualStorage, virtual_of
from torchtally.virtual.streams import current_stream_number

SIGNAL_PAD_BYTES = 2048
"""Of each allocation (torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory-inl.h)."""

BARRIER = kernel("symm_mem.barrier", ("tensor",), frozenset())
SIGNAL = kernel("symm_mem.put_signal", ("tensor",), frozenset())
AWAIT = kernel("symm_mem.wait_signal", ("tensor",), frozenset())
GET = kernel("symm_mem.get", ("source", "target"), frozenset(["target"]))
PUT = kernel("symm_mem.put", ("source", "target"), frozenset(["target"]))

NOTE = (
    "operators read or write memory of other ranks in kernels of their own: they are timed as "
    "if it were local memory"
)
COPIES = frozenset(["aten.copy_"])


@dataclass(slots=True)
class Allocation:
    """A storage that other ranks reach."""

    group_name: str | None
    """The group that it was allocated for, if for one."""
    handles: dict[str, "SymmetricMemory"] = field(default_factory=dict)
    """By the names of groups."""


class Peers:
    """The tensors of a session that other ranks reach, and those that stand for theirs."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self.allocations: WeakKeyDictionary[VirtualStorage, Allocation] = WeakKeyDictionary()
        self.owners: WeakKeyDictionary[VirtualStorage, tuple[int, int]] = WeakKeyDictionary()
        """Of storages that stand for another rank's: the group's number, and the rank in it."""

    def as_transfer(self, call: Invocation) -> Invocation:
        """A copy from or to another rank's memory is one over their link."""
        places = [self.owners.get(virtual) if virtual else None for virtual in call.virtuals]
        owner = next(filter(None, places), None)
        if owner is None:
            return call
        if call.operator.name not in COPIES or len(call.inputs) < 2:
            self.mode.observer.note(NOTE)
            return call
        target, source = call.inputs[:2]
        return transfer(PUT if places[0] else GET, (source, target), *owner)


def transfer(
    operator: Operator, tensors: tuple[Tensor, ...], group: int, peer: int | None
) -> Invocation:
    call = Invocation(operator, tensors, {})
    settings: tuple[tuple[str, Literal], ...] = (("group", group),)
    call.settings = settings if peer is None else (*settings, ("peer", peer))
    return call


class SymmetricMemory:
    """Stands for `torch._C._distributed_c10d._SymmetricMemory`: a tensor, and a group's ranks."""

    signal_pad_size = SIGNAL_PAD_BYTES
    peers: Peers
    """Of the session."""
    backend = "CUDA"

    def __init__(self, tensor: Tensor, group: Any) -> None:
        self._group = group
        self._number = self.peers.mode.groups.number(group)
        self._tensor = tensor
        self._of_peers: dict[int, Tensor] = {}
        self._pads: dict[int, Tensor] = {}
        self.rank, self.world_size = group.rank(), group.size()
        self.device = tensor.device
        self.buffer_size = tensor.untyped_storage().nbytes()
        self.offset = 0

    # What makes and finds them.

    @classmethod
    def set_group_info(cls, *args: Any) -> None: ...

    @classmethod
    def set_backend(cls, name: str) -> None:
        cls.backend = name

    @classmethod
    def get_backend(cls, device: Any) -> str:
        return cls.backend

    @classmethod
    def get_mempool_allocator(cls, device: Any) -> None:
        return None

    @classmethod
    def has_multicast_support(cls, device_type: Any, device_index: int) -> bool:
        target = cls.peers.mode.target
        if target is None or target.node is None:
            return False
        return target.sm.has_multimem and target.node.gpus > 2

    @classmethod
    def empty_strided_p2p(
        cls, size: Any, stride: Any, dtype: torch.dtype, device: Any,
        group_name: str | None = None, alloc_id: int | None = None,
    ) -> Tensor:  # fmt: skip
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        virtual = virtual_of(tensor)
        if virtual is not None:
            cls.peers.allocations[virtual] = Allocation(group_name)
        return tensor

    @classmethod
    def is_symm_mem_tensor(cls, tensor: Tensor) -> bool:
        virtual = virtual_of(tensor)
        return virtual is not None and virtual in cls.peers.allocations

    @classmethod
    def rendezvous(cls, tensor: Tensor, group_name: Any = None) -> "SymmetricMemory | None":
        """None where the tensor was not allocated for it, as C++ answers."""
        virtual = virtual_of(tensor)
        allocation = None if virtual is None else cls.peers.allocations.get(virtual)
        if allocation is None:
            return None
        chosen = group_name or allocation.group_name or torch.distributed.group.WORLD
        group = private.process_group(chosen)
        name = str(group.group_name)
        if name not in allocation.handles:
            check_within_node(cls.peers.mode, group)
            allocation.handles[name] = cls(whole_of(tensor), group)
        return allocation.handles[name]

    # Memory of the ranks.

    def get_buffer(
        self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int | None = 0
    ) -> Tensor:
        whole = self._tensor if rank == self.rank else self._of_peer(rank)
        return view_of(whole, sizes, dtype, storage_offset or 0)

    def get_remote_tensor(self, peer: int, sizes: Any, dtype: torch.dtype) -> Tensor:
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Any = (),
        dtype: torch.dtype | None = None,
        storage_offset: int | None = 0,
    ) -> Tensor:
        dtype = torch.uint32 if dtype is None else dtype
        count = self.signal_pad_size // dtype.itemsize
        pad = self._pads.get(rank)
        if pad is None:
            pad = self._pads[rank] = self._stand_in(rank, self.signal_pad_size)
        return view_of(pad, sizes or (count,), dtype, storage_offset or 0)

    def _of_peer(self, rank: int) -> Tensor:
        tensor = self._of_peers.get(rank)
        if tensor is None:
            tensor = self._of_peers[rank] = self._stand_in(rank, self.buffer_size)
        return tensor

    def _stand_in(self, rank: int, size_bytes: int) -> Tensor:
        """Bytes without memory, whose owner is a rank of the group; in the record the buffer's."""
        own = virtual_of(self._tensor)
        assert own is not None, "only virtual tensors are given handles"
        with private.without_dispatch_modes():
            tensor = torch.empty(size_bytes, dtype=torch.uint8, device=META)
        storage = VirtualStorage.lend(own.home, own.address, size_bytes, own.number)
        tensor.untyped_storage().virtual = storage  # type: ignore[attr-defined]
        if rank != self.rank:
            self.peers.owners[storage] = (self._number, rank)
        return tensor

    @property
    def buffer_ptrs(self) -> list[int]:
        return [self._tensor.data_ptr()] * self.world_size

    @property
    def signal_pad_ptrs(self) -> list[int]:
        return self.buffer_ptrs

    @property
    def buffer_ptrs_dev(self) -> int:
        return self.buffer_ptrs[0]

    @property
    def signal_pad_ptrs_dev(self) -> int:
        return self.buffer_ptrs[0]

    @property
    def multicast_ptr(self) -> int:
        has_support = self.has_multicast_support(None, 0)
        return self.buffer_ptrs[0] if has_support else 0

    def boxed(self) -> "SymmetricMemory":
        return self

    # What orders the ranks.

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        self._notify(BARRIER, None)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        self._notify(SIGNAL, dst_rank)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        self._notify(AWAIT, src_rank)

    def _notify(self, operator: Operator, peer: int | None) -> None:
        call = transfer(operator, (self._tensor,), self._number, peer)
        self.peers.mode.notify(call, (), call.home)

    @staticmethod
    def stream_write_value32(tensor: Tensor, offset: int, val: int) -> None:
        """A word written by the stream itself, not by a kernel."""

    @staticmethod
    def memset32(tensor: Tensor, offset: int, val: int, count: int = 1) -> Tensor:
        return tensor.view(-1)[offset : offset + count].fill_(val)


def whole_of(tensor: Tensor) -> Tensor:
    """The bytes of its storage."""
    return view_of(tensor, (tensor.untyped_storage().nbytes(),), torch.uint8, 0)


def view_of(tensor: Tensor, sizes: Any, dtype: torch.dtype, offset: int) -> Tensor:
    """A part of its storage, made by no operator."""
    strides = torch.empty(tuple(sizes), device=META).stride()
    with private.without_dispatch_modes():
        view = torch.empty(0, dtype=dtype, device=META)
        return view.set_(tensor.untyped_storage(), offset, tuple(sizes), strides)


def check_within_node(mode: VirtualDispatch, group: Any) -> None:
    """Raise RuntimeError for a group whose GPUs have no link to each other."""
    world = mode.groups.world
    ranks = torch.distributed.get_process_group_ranks(group)
    nodes = {rank // world.gpus_per_node for rank in ranks}
    if len(nodes) > 1:
        raise RuntimeError(
            f"symmetric memory joins GPUs of one node; the group {group.group_desc or ranks} is on "
            f"{len(nodes)}: ranks {', '.join(map(str, ranks[:16]))}."
        )


# Operators of `symm_mem`.


def composition_handler(name: str) -> Handler:
    """torch's own composition of copies, products and barriers."""

    def run(mode: VirtualDispatch, call: Invocation) -> Any:
        with mode:
            return private.composition(name)(*call.args, **call.kwargs)

    return run


def run_kernel(mode: VirtualDispatch, call: Invocation) -> Any:
    """A collective that is one kernel on the current stream."""
    number = mode.groups.number(private.process_group(call.argument("group_name")))
    call.settings = (("group", number),)
    return mode.run(call)


def result_of(overload: Any) -> Callable[..., Tensor]:
    """The shape function of a kernel: torch has none for some. Its result is the tensor that it
    writes, or one like the tensor that it reduces.
    """
    arguments = private.schema(overload).arguments
    written = [each.name for each in arguments if each.alias_info and each.alias_info.is_write]
    names = [each.name for each in arguments]

    def shape(*args: Any, **kwargs: Any) -> Tensor:
        given: dict[str, Tensor] = {**dict(zip(names, args, strict=False)), **kwargs}
        if written:
            return given[written[-1]]
        return torch.empty_like(given["local_input" if "local_input" in given else "input"])

    return shape


def register() -> None:
    """Enter the handlers of the operators that this torch has."""
    private.symmetric_memory()  # it defines them
    token_exchange.register()
    for name in (*private.FUSED_COLLECTIVES, *private.SYMMETRIC_COLLECTIVES):
        if not hasattr(torch.ops.symm_mem, name):
            continue
        overload = getattr(torch.ops.symm_mem, name).default
        is_composed = name in private.FUSED_COLLECTIVES
        SPECIAL[overload] = composition_handler(name) if is_composed else run_kernel
        if not is_composed:
            SHAPES[overload] = result_of(overload)


def stand_ins(mode: VirtualDispatch) -> list[StandIn]:
    module = private.symmetric_memory()
    SymmetricMemory.peers = mode.groups.peers = Peers(mode)

    def empty(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        strides = torch.empty(shape, device=META).stride()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        device = torch.get_default_device() if device is None else device
        return SymmetricMemory.empty_strided_p2p(shape, strides, dtype, device)

    def register_work(tensor: Tensor, work: Any) -> None:
        """`wait_tensor` waits for what the current stream was given until now."""
        virtual = virtual_of(tensor)
        if virtual is not None:
            moment = (current_stream_number(), mode.observer.clock)
            mode.groups.pending[virtual] = moment

    return [
        StandIn(module, "empty", empty),
        StandIn(module, private.symmetric_handle().name, SymmetricMemory),
        *[StandIn(module, name, {}) for name in private.SYMMETRIC_STATE],
        StandIn(*private.symmetric_handle(), SymmetricMemory),
        StandIn(*private.registry_of_works(), register_work),
    ]
