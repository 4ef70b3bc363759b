"""Bring a virtual GPU up, and take it down so that torch is as it was."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.chips import Chip, chip
from torchtally.errors import UsageError
from torchtally.memory.allocator import AllocatorSettings, CachingAllocator
from torchtally.memory.workspace import context_bytes
from torchtally.torch_private import releases
from torchtally.trace import World
from torchtally.virtual import (
    attention,
    engine,
    gradients,
    kernels,
    nested,
    rocm,
    safetensors_files,
    sparse,
    special,
    value_shapes,
)
from torchtally.virtual.autocast import Autocast
from torchtally.virtual.compiling import Compiling
from torchtally.virtual.cuda import CudaModule
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.device_query import DeviceQuery
from torchtally.virtual.dispatch import SPECIAL, KernelTime, VirtualDispatch, no_time
from torchtally.virtual.distributed import (
    checkpoints,
    chunks,
    coalescing,
    collectives,
    dtensor,
    expert_exchange,
    many_ranks,
    objects,
    reductions,
    states,
    symmetric,
)
from torchtally.virtual.extensions import absent, cuda_kernels, custom_operators, requested
from torchtally.virtual.extensions.builds import Builds
from torchtally.virtual.extensions.triton_kernels import TritonKernels
from torchtally.virtual.factories import Factories
from torchtally.virtual.flex_attention import FlexAttention
from torchtally.virtual.invocation import limit_signatures
from torchtally.virtual.later_modules import patching
from torchtally.virtual.observer import NullObserver, Observer
from torchtally.virtual.operators import KNOWN
from torchtally.virtual.placeholder_arrays import PlaceholderArrays
from torchtally.virtual.processes import ScriptProcesses
from torchtally.virtual.saving import (
    Loading,
    Saving,
    rebuild_virtual_tensor,
    send_zeros_to_processes,
)
from torchtally.virtual.scripting import Scripting
from torchtally.virtual.stand_ins import StandIn, apply, check_owners
from torchtally.virtual.storage import HostMemory
from torchtally.virtual.streams import Event, EventClock, Stopwatch, current_stream_number
from torchtally.virtual.tensors import TensorMethods
from torchtally.virtual.threads import Threads

CPU = "CPU"
"""The vendor of a `Chip` that is the host itself."""

assert SPECIAL, f"{special.__name__}, {value_shapes.__name__}: handlers registered on import"


class VirtualGPU:
    """A session's handle: the chip it simulates and the memory of its tensors."""

    def __init__(
        self, chip: Chip, mode: VirtualDispatch, processes: ScriptProcesses, builds: Builds
    ) -> None:
        self.chip = chip
        self.builds = builds
        """C++ extensions that are being built."""
        self.mode = mode
        self.processes = processes
        """Those that the script has started."""

    @property
    def host_bytes(self) -> int:
        """Bytes of tensors on the host that have no values: of a model built there, its weights."""
        return self.mode.host.held_bytes

    @property
    def allocated_bytes(self) -> int:
        return sum(gpu.allocated_bytes for gpu in self.mode.gpus)

    @property
    def peak_allocated_bytes(self) -> int:
        return max(gpu.peak_allocated_bytes for gpu in self.mode.gpus)

    @property
    def reserved_bytes(self) -> int:
        return sum(gpu.reserved_bytes for gpu in self.mode.gpus)

    @property
    def peak_reserved_bytes(self) -> int:
        return max(gpu.peak_reserved_bytes for gpu in self.mode.gpus)


_active = threading.Lock()


def check_inactive() -> None:
    """Raise UsageError within a session: there is one virtual GPU at a time."""
    if _active.locked():
        raise UsageError("a virtual GPU is active already: leave that session first")


def is_simulated() -> bool:
    """Whether "cuda" is a simulated GPU now, in this process."""
    return _active.locked()


class Session(AbstractContextManager[VirtualGPU]):
    """A session that is left in the thread that entered it.

    Dispatch modes and included keys are thread-local in torch (c10/core/impl/LocalDispatchKeySet):
    no other thread can take them from the one that has them.
    """

    def __init__(self, session: AbstractContextManager[VirtualGPU]) -> None:
        self._session = session
        self._thread: threading.Thread | None = None

    def __enter__(self) -> VirtualGPU:
        self._thread = threading.current_thread()
        return self._session.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        """Raises UsageError in another thread; the session stays, to be left in its own."""
        if self._thread is not threading.current_thread():
            name = "no thread" if self._thread is None else repr(self._thread.name)
            raise UsageError(
                f"the virtual GPU was entered in the thread {name} and is being left in "
                f"{threading.current_thread().name!r}: leave it where it was entered, by a `with` "
                "block in one function"
            )
        return self._session.__exit__(*error)


def virtual_gpu(
    gpu: str | Chip,
    *,
    observer: Observer | None = None,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    dispatch: kernels.Dispatch = "cuda",
    stopwatch: Stopwatch | None = None,
    kernel_s: KernelTime = no_time,
    world: World = World(),  # noqa: B008 (frozen)
) -> AbstractContextManager[VirtualGPU]:
    """Context in which "cuda" is a simulated chip: `torch.cuda.is_available()` and all that
    follows.

    Args:
        gpu: the chip, by any name `tally gpus` lists, or a `Chip`.
        observer: notified of every operator, allocation and placeholder.
        nonzero_fraction: where a shape depends on unknown values (`x[mask]`), the share of
            elements assumed to be selected, 0 to 1.
        memory_is_limited: a request beyond the chip's memory raises torch.OutOfMemoryError;
            otherwise memory is unlimited.
        dispatch: which operators run where PyTorch decomposes differently, the GPU's ("cuda")
            or the host's ("cpu"). The latter is for comparing a run with a real one on the CPU,
            and always used for a `Chip` of the vendor "CPU".
        stopwatch: predicted seconds between two moments, each the number of operators that the
            device was given before; what `torch.cuda.Event.elapsed_time` answers from.
        kernel_s: predicted seconds of a call, by which a compiler chooses what it would measure.
        world: the rank that the process is, of so many, one for each GPU.

    PYTORCH_CUDA_ALLOC_CONF sets up the allocator's model as it sets up torch's.

    Raises UnknownChipError for an unknown name, UsageError when a session is active already, and
    UsageError when it is left in another thread than it was entered in.
    """
    return Session(
        _session(
            gpu,
            observer or NullObserver(),
            nonzero_fraction=nonzero_fraction,
            memory_is_limited=memory_is_limited,
            dispatch=dispatch,
            stopwatch=stopwatch,
            kernel_s=kernel_s,
            world=world,
        )
    )


@contextmanager
def _session(
    gpu: str | Chip,
    listener: Observer,
    *,
    nonzero_fraction: float,
    memory_is_limited: bool,
    dispatch: kernels.Dispatch,
    stopwatch: Stopwatch | None,
    kernel_s: KernelTime,
    world: World,
) -> Iterator[VirtualGPU]:
    target = gpu if isinstance(gpu, Chip) else chip(gpu)
    is_host = target.vendor == CPU
    if not target.is_torch_cuda and not is_host:
        raise UsageError(
            f'{target.name} is not a CUDA device: torch scripts that ask for "cuda" run on '
            "NVIDIA's chips, and on AMD's by ROCm.\n`tally gpus` lists them, with their vendors; "
            f"`tally plan MODEL --gpus {target.name}` plans a training on this one."
        )
    if not 0 <= nonzero_fraction <= 1:
        raise UsageError(
            f"nonzero_fraction: expected a number between 0 and 1, got {nonzero_fraction!r}"
        )
    if not _active.acquire(blocking=False):
        raise UsageError("a virtual GPU is active already: leave that session first")
    try:
        with ExitStack() as stack:
            gpus = [
                memory_of(target, number, listener, is_limited=memory_is_limited)
                for number in range(world.gpus_per_node)
            ]
            mode = VirtualDispatch(gpus, HostMemory(), listener, world)
            mode.nonzero_fraction = nonzero_fraction
            mode.kernel_s = kernel_s
            Event.clock = EventClock(lambda: listener.clock, stopwatch, listener.stream_waited)
            stack.callback(setattr, Event, "clock", None)
            if remark := releases.untested_remark(torch.__version__):
                listener.note(remark)
            if target.gcn_architecture:
                listener.note(rocm.UNKNOWN)
            yield _activate(stack, target, mode, "cpu" if is_host else dispatch)
    finally:
        _active.release()


def memory_of(target: Chip, number: int, observer: Observer, *, is_limited: bool) -> DeviceMemory:
    """The chip's memory, less what the CUDA context takes; all of it on a CPU."""
    total_bytes = target.total_memory_bytes
    capacity_bytes = total_bytes - context_bytes(target)
    allocator = CachingAllocator(
        AllocatorSettings.of_environment(os.environ),
        capacity_bytes=capacity_bytes if is_limited else None,
        total_bytes=total_bytes,
    )
    device = torch.device("cuda", number)
    return DeviceMemory(device, allocator, observer, stream=current_stream_number)


def _activate(
    stack: ExitStack, target: Chip, mode: VirtualDispatch, dispatch: kernels.Dispatch
) -> VirtualGPU:
    """Put everything in place; `stack` takes it away again in reverse order."""
    for gpu in mode.gpus:
        stack.callback(setattr, gpu, "observer", None)
    mode.run_sparse = sparse.run
    mode.target = target if dispatch == "cuda" else None
    mode.operators = KNOWN.of((target, dispatch))
    stack.callback(KNOWN.keep, mode.operators)
    stack.callback(limit_signatures)
    autocast = Autocast(stack)
    autocast.begin()
    for library in kernels.register(dispatch):
        stack.callback(private.destroy, library)
    kernels.Target.chip, Loading.mode = target, mode
    stack.callback(setattr, kernels.Target, "chip", None)
    stack.callback(setattr, Loading, "mode", None)
    stack.callback(autocast.cache.clear)
    stack.enter_context(torch.serialization.safe_globals([rebuild_virtual_tensor]))
    stack.enter_context(send_zeros_to_processes())
    stack.enter_context(private.lift_cpu_tensors_only())
    mode.groups.note = mode.observer.note
    mode.groups.prepare = lambda: prepare_groups(stack, mode)
    processes = ScriptProcesses(mode.groups.world)
    saving, arrays = Saving(mode), PlaceholderArrays(lambda: mode.observer)
    stand_ins = [
        *_table(mode, target, autocast, stack, arrays),
        *saving.stand_ins(),
        *processes.stand_ins(),
    ]
    check_owners(stand_ins)
    stack.enter_context(apply(stand_ins))
    if target.is_cuda:
        query = DeviceQuery(mode, target)
        stack.callback(query.remove)
        stack.enter_context(apply(query.stand_ins()))
    _clear_device_constructors()
    stack.callback(_clear_device_constructors)
    stack.enter_context(private.autocast_on_backend())
    # These operators know no kernel for our autocast key, which is included: pass it by.
    stack.enter_context(private.let_higher_order_operators_reach_modes())
    stack.enter_context(_not_in_children(mode))
    stack.enter_context(private.keep_default_device())
    stack.enter_context(private.include_autocast_key())
    builds = Builds()
    stack.enter_context(
        patching(
            [
                *builds.patches(),
                (private.FSDP_PARAMETERS, chunks.stand_ins),
                (private.ZERO_OPTIMIZER, states.stand_ins_of_zero),
                (private.FSDP_OPTIMIZERS, states.stand_ins_of_fsdp),
                (private.SHARDED_TENSORS, states.stand_ins_of_shards),
                *safetensors_files.patches(saving.save, saving.load),
                *TritonKernels(mode).patches(),
                *requested.patches(mode.observer.note),
                *arrays.patches(),
            ]
        )
    )
    stack.enter_context(absent.with_stand_ins(mode.observer.note))
    stack.enter_context(mode)
    return VirtualGPU(target, mode, processes, builds)


def prepare_groups(stack: ExitStack, mode: VirtualDispatch) -> None:
    """Put in place what a run needs that has process groups: modules of torch that take a second
    to import.
    """
    collectives.register()
    symmetric.register()
    expert_exchange.register()
    stack.callback(private.forget_process_groups)
    stack.enter_context(
        apply(
            [
                *dtensor.stand_ins(mode),
                *reductions.stand_ins(),
                *objects.stand_ins(mode.groups),
                *many_ranks.stand_ins(),
                *coalescing.stand_ins(mode),
                *checkpoints.stand_ins(),
                *symmetric.stand_ins(mode),
            ]
        )
    )


def _table(
    mode: VirtualDispatch,
    target: Chip,
    autocast: Autocast,
    stack: ExitStack,
    arrays: PlaceholderArrays,
) -> list[StandIn]:
    """Everything that is replaced in torch during the session."""
    native_clear, native_group = torch.clear_autocast_cache, private.group_tensors

    def clear_autocast_cache() -> None:
        native_clear()
        autocast.cache.clear()

    def group_tensors(*args: Any, **kwargs: Any) -> Any:
        """Groups keyed by the device Python sees, as optimizers and clipping expect."""
        groups = native_group(*args, **kwargs)
        return {
            (next(t for t in lists[0] if t is not None).device, key[1]): (lists, indices)
            for key, (lists, indices) in groups.items()
        }

    return [
        *TensorMethods(mode, arrays).stand_ins(),
        *gradients.stand_ins(mode),
        *engine.stand_ins(),
        *Factories(mode).stand_ins(),
        *CudaModule(mode, target).stand_ins(),
        *autocast.stand_ins(),
        *Compiling(mode, target, stack, autocast).stand_ins(),
        *FlexAttention(mode).stand_ins(),
        *cuda_kernels.stand_ins(mode),
        *custom_operators.stand_ins(mode),
        *Scripting(mode).stand_ins(),
        *(attention.stand_ins(target) if mode.target is not None else ()),
        *(host_defaults() if target.vendor == CPU else ()),
        StandIn(torch, "clear_autocast_cache", clear_autocast_cache),
        StandIn(*private.GROUP_TENSORS, group_tensors),
        *Threads(mode).stand_ins(),
        *nested.stand_ins(),
        *mode.groups.stand_ins(),
    ]


ASK_FOR_FOREACH = ("torch.optim.optimizer", "torch.optim.swa_utils")
"""Modules that import the function by name."""


def host_defaults() -> list[StandIn]:
    """Take "cuda" off the devices on which optimizers and weight averaging default to `foreach`.

    Clipping of gradients, which does so on the CPU, too, asks another function.
    """
    native = private.devices_with_foreach

    def devices() -> list[str]:
        return [name for name in native() if name != "cuda"]

    return [StandIn(import_module(name), native.__name__, devices) for name in ASK_FOR_FOREACH]


def _clear_device_constructors() -> None:
    """Clears the factories that `with torch.device(...)` caches (torch/utils/_device.py)."""
    private.device_constructors.cache_clear()


_sessions: list[VirtualDispatch] = []


@contextmanager
def _not_in_children(mode: VirtualDispatch) -> Iterator[None]:
    """Have a forked process (a data loader's worker) leave the simulation."""
    _sessions.append(mode)
    try:
        yield
    finally:
        _sessions.remove(mode)


def _leave_in_child() -> None:
    for mode in _sessions:
        mode.leave_in_child()


os.register_at_fork(after_in_child=_leave_in_child)
