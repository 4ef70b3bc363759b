"""What torch's Python and C++ have for GPUs: their memory, and what only some builds know."""

from collections.abc import Callable
from typing import Any

import torch

from torchtally.torch_private.places import PrivateName

DUMP_SNAPSHOT = PrivateName(torch.cuda.memory, "_dump_snapshot")
LAZY_INIT, INITIALIZED, LAZY_CALL, SLEEP = "_lazy_init", "_initialized", "_lazy_call", "_sleep"
"""Names of `torch.cuda`."""

MEMORY_CALLS = {
    name: PrivateName(torch._C, private_name)
    for name, private_name in {
        "clear_blas": "_cuda_clearCublasWorkspaces",
        "nested_stats": "_cuda_memoryStats",
        "snapshot": "_cuda_memorySnapshot",
        "record_history": "_cuda_record_memory_history",
        "record_history_legacy": "_cuda_record_memory_history_legacy",
        "traceback": "_cuda_allocationTraceback",
        "set_metadata": "_cuda_setMemoryMetadata",
        "get_metadata": "_cuda_getMemoryMetadata",
        "raw_allocate": "_cuda_cudaCachingAllocator_raw_alloc",
        "raw_delete": "_cuda_cudaCachingAllocator_raw_delete",
        "set_settings": "_cuda_cudaCachingAllocator_set_allocator_settings",
        "set_accelerator_settings": "_accelerator_setAllocatorSettings",
        "is_initialized": "_accelerator_isAllocatorInitialized",
        "accelerator_stats": "_accelerator_getDeviceStats",
    }.items()
}
"""What torch's Python asks its C++ about a GPU's memory. A build for CPUs lacks those of CUDA."""

COMPILE_KERNEL = PrivateName(torch.cuda, "_compile_kernel")
TRITON_DRIVER = "_active"
"""Of `triton.runtime.driver.driver`: the driver that answers, once one does."""
TRITON_BENCHMARK = "_bench"
"""Of `triton.runtime.autotuner.Autotuner`: the times of one configuration."""


BUILD = torch._C
"""Where functions are that only a build with some library has."""


def call_of_build(library: str, name: str) -> PrivateName:
    """A function of torch's C++ that only a build with this library has: "cuda", "nccl", "cudnn".

    See the tables in torch/csrc/cuda/Module.cpp.
    """
    return PrivateName(BUILD, f"_{library}_{name}")


def calls_of_build(library: str) -> list[str]:
    """Those functions that this build has; classes are left alone."""
    prefix = f"_{library}_"
    return [
        name.removeprefix(prefix)
        for name, value in vars(BUILD).items()
        if name.startswith(prefix) and not isinstance(value, type)
    ]


# On a real GPU, or on the virtual one, whose answers are looked up at each call.


def call_once_initialized(function: Callable[[], None]) -> None:
    """Call at once, or as soon as CUDA is used."""
    torch.cuda._lazy_call(function)


def record_memory_history(enabled: Any, **options: Any) -> None:
    torch.cuda.memory._record_memory_history(enabled=enabled, **options)


def set_memory_metadata(text: str) -> None:
    torch.cuda.memory._set_memory_metadata(text)


def memory_snapshot(**options: Any) -> Any:
    return torch.cuda.memory._snapshot(**options)


def sleep_on_gpu(cycles: int) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(cycles)
