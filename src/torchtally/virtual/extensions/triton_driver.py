"""The simulated chip as Triton asks for it."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

WARP = 32
BENCHMARK_CACHE_BYTES = 256 * 1024**2


class TritonDriver:
    """Answers what is asked of `triton.runtime.driver.active`; launches nothing.

    Triton is imported where torch's functions may not be replaced: the chip is asked for later.
    """

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=self.device_properties)

    def device_properties(self, device: int) -> dict[str, int]:
        properties: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": WARP,
        }

    def get_current_target(self) -> Any:
        major, minor = torch.cuda.get_device_capability(0)
        return import_module("triton.backends.compiler").GPUTarget("cuda", 10 * major + minor, WARP)

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """A tensor as large as the L2 cache of most GPUs (triton/backends/nvidia/driver.py)."""
        return torch.empty(BENCHMARK_CACHE_BYTES // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def get_benchmarker(self) -> Any:
        return import_module("triton.testing").do_bench
