"""What a CUDA build of torch has besides `torch.cuda`: the calls of its C++, and NCCL's names.

Libraries call some of these directly, and more of them look for their names. Every name is there:
it answers, or it refuses by name.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.torch_private import releases
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.profiling import do_nothing
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.streams import CURRENT, DEFAULT_STREAM_ID, Stream

NCCL_MAJOR_BITS, NCCL_MINOR_BITS = 32, 16
"""Where `torch.cuda.nccl.version()` looks for the numbers."""

SYNC_DEBUG_MODES = ("default", "warn", "error")
BLAS_HANDLE, SOLVER_HANDLE = 1, 2
CUDNN_BENCHMARK_LIMIT = 10
"""torch's default (aten/src/ATen/Context.h)."""

REFUSED = """
allocationTraceback attach_out_of_memory_observer beginAllocateCurrentStreamToPool
beginAllocateCurrentThreadToPool beginAllocateToPool changeCurrentAllocator
checkPoolLiveAllocations cudaCachingAllocator_enable cudaHostAllocator customAllocator
endAllocateToPool getAllocator getCheckpointState getCublasLtWorkspaceSize getCublasWorkspaceSize
getStreamFromExternal hostMemoryStats jiterator_compile_and_launch_kernel releasePool
resetAccumulatedHostMemoryStats resetCublasLtWorkspaceSize resetCublasWorkspaceSize
resetPeakHostMemoryStats setCheckpointPoolState setCublasLtWorkspaceSize setCublasWorkspaceSize
record_untuned_enable tunableop_enable tunableop_get_filename tunableop_get_max_tuning_duration
tunableop_get_max_tuning_iterations tunableop_get_results tunableop_get_rotating_buffer_size
tunableop_get_rotation_buffer_size tunableop_get_validators tunableop_read_file
tunableop_set_filename tunableop_set_max_tuning_duration tunableop_set_max_tuning_iterations
tunableop_set_numerical_check_tolerances tunableop_set_rotating_buffer_size
tunableop_tuning_enable getHipblasltVersion
"""
REFUSED_NCCL = "all_gather all_reduce broadcast init_rank reduce reduce_scatter unique_id"


def refuse(name: str) -> Any:
    raise UnsupportedError(
        f"{name} is not available on tally's simulated GPU: it needs a real one.\n"
        "Guard the call, or leave it out of the simulated run."
    )


def refusal(name: str) -> Callable[..., Any]:
    """A function that refuses, by its name."""

    def refuse_call(*args: Any, **kwargs: Any) -> Any:
        refuse(name)

    refuse_call.__name__ = name
    return refuse_call


class CudaCalls:
    """The C++ calls of a CUDA build. `cuda` has the answers of `torch.cuda`, by name."""

    def __init__(self, mode: VirtualDispatch, cuda: dict[str, Any]) -> None:
        self.mode = mode
        self.cuda = cuda
        self.sync_debug_mode = 0
        self.benchmark_limit = CUDNN_BENCHMARK_LIMIT
        self.empties_cache = False

    # Devices.

    def exchange_device(self, device: int) -> int:
        """The device that was current; a negative number changes nothing."""
        if device < 0:
            return -1
        before = self.mode.current_device
        self.cuda["set_device"](device)
        return before

    # Streams.

    @staticmethod
    def description(stream: Stream) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    def set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        CURRENT.stream = Stream(device_index, stream_id=stream_id)

    # Settings.

    def set_sync_debug_mode(self, level: int | str) -> None:
        self.sync_debug_mode = SYNC_DEBUG_MODES.index(level) if isinstance(level, str) else level

    def set_benchmark_limit(self, limit: int) -> None:
        self.benchmark_limit = limit

    def set_empties_cache(self, enable: bool) -> None:
        self.empties_cache = enable

    # The tables.

    def answers(self) -> dict[str, Any]:
        cuda = self.cuda
        return {
            "init": do_nothing,
            "isInBadFork": lambda: False,
            "hasPrimaryContext": lambda device: True,
            "getDevice": cuda["current_device"],
            "getDeviceCount": cuda["device_count"],
            "setDevice": cuda["set_device"],
            "exchangeDevice": self.exchange_device,
            "maybeExchangeDevice": self.exchange_device,
            "canDeviceAccessPeer": cuda["can_device_access_peer"],
            "getArchFlags": lambda: " ".join(cuda["get_arch_list"]()) or None,
            "getCompiledVersion": compiled_version,
            "getCurrentStream": lambda device: self.description(cuda["current_stream"](device)),
            "getCurrentRawStream": lambda device: cuda["current_stream"](device).cuda_stream,
            "getDefaultStream": lambda device: (DEFAULT_STREAM_ID, device, Stream.device_type),
            "setStream": self.set_stream,
            "isCurrentStreamCapturing": cuda["is_current_stream_capturing"],
            "getCurrentBlasHandle": lambda: BLAS_HANDLE,
            "getCurrentSolverHandle": lambda: SOLVER_HANDLE,
            "synchronize": cuda["synchronize"],
            "sleep": do_nothing,
            "ipc_collect": do_nothing,
            "emptyCache": cuda["empty_cache"],
            "getAllocatorBackend": cuda["get_allocator_backend"],
            "getMemoryFraction": cuda["get_per_process_memory_fraction"],
            "setMemoryFraction": cuda["set_per_process_memory_fraction"],
            "resetPeakMemoryStats": cuda["reset_peak_memory_stats"],
            "resetAccumulatedMemoryStats": cuda["reset_accumulated_memory_stats"],
            "cudaCachingAllocator_is_enabled": lambda: True,
            "memoryMetadataSupported": lambda: True,
            "lock_mutex": do_nothing,
            "unlock_mutex": do_nothing,
            "isHistoryEnabled": lambda: False,
            "get_sync_debug_mode": lambda: self.sync_debug_mode,
            "set_sync_debug_mode": self.set_sync_debug_mode,
            "get_cudnn_benchmark_limit": lambda: self.benchmark_limit,
            "set_cudnn_benchmark_limit": self.set_benchmark_limit,
            "get_conv_benchmark_empty_cache": lambda: self.empties_cache,
            "tunableop_is_enabled": lambda: False,
            "tunableop_tuning_is_enabled": lambda: False,
            "tunableop_wildcard_fallback_is_enabled": lambda: False,
            "record_untuned_is_enabled": lambda: False,
        }

    def stand_ins(self) -> list[StandIn]:
        # Of a build for CUDA also those that it has and this file does not know: they would ask
        # the driver.
        names = (*REFUSED.split(), *private.calls_of_build("cuda"))
        refused = {name: refusal(str(private.call_of_build("cuda", name).name)) for name in names}
        calls = {**refused, **self.answers()}
        return [
            *(
                StandIn(*private.call_of_build("cuda", name), answer)
                for name, answer in calls.items()
            ),
            StandIn(
                *private.call_of_build("cudnn", "set_conv_benchmark_empty_cache"),
                self.set_empties_cache,
            ),
            StandIn(*private.call_of_build("cudnn", "clear_dropout_state"), do_nothing),
            StandIn(*private.call_of_build("host", "emptyCache"), do_nothing),
            *nccl_stand_ins(),
        ]


def compiled_version() -> int:
    """Version as CUDA_VERSION: 13000 of "13.0"."""
    major, minor = str(torch.version.cuda or releases.HERE.cuda).split(".")[:2]
    return int(major) * 1000 + int(minor) * 10


def nccl_stand_ins() -> list[StandIn]:
    """NCCL's names and its version; a group of processes over it is refused."""
    major, minor, patch = releases.HERE.nccl
    version = major << NCCL_MAJOR_BITS | minor << NCCL_MINOR_BITS | patch
    calls = {name: refusal(f"torch.cuda.nccl.{name}") for name in REFUSED_NCCL.split()}
    return [
        StandIn(*private.call_of_build("nccl", "version"), lambda: version),
        StandIn(*private.call_of_build("nccl", "version_suffix"), lambda: b""),
        *(StandIn(*private.call_of_build("nccl", name), call) for name, call in calls.items()),
    ]
