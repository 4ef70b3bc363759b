"""What PyTorch's build for ROCm says of an AMD GPU, which it calls "cuda", too."""

from typing import Any

import torch

from torchtally.chips import Chip
from torchtally.torch_private import releases
from torchtally.virtual.shown_properties import ShownProperties
from torchtally.virtual.stand_ins import StandIn

UNKNOWN = "ROCm: memory that hipBLASLt, MIOpen and the context take besides tensors is not modelled"
LDS_BYTES = {"gfx90a": 64 * 1024, "gfx942": 64 * 1024, "gfx950": 160 * 1024}
"""Shared memory of a compute unit: https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html."""


def properties(chip: Chip) -> ShownProperties:
    """Properties as by `torch.cuda.get_device_properties`, without figures that are not published.

    gcnArchName as an MI300X has it, https://github.com/pytorch/ao/pull/2853.
    """
    facts = chip.properties
    lds_bytes = LDS_BYTES.get(chip.gcn_architecture)
    known: dict[str, Any] = {
        "multi_processor_count": facts.multi_processor_count,
        "L2_cache_size": facts.L2_cache_size,
        "shared_memory_per_block": lds_bytes,
        "shared_memory_per_multiprocessor": lds_bytes,
    }
    return ShownProperties(
        name=chip.device_name,
        major=facts.major,
        minor=facts.minor,
        total_memory=facts.total_memory,
        warp_size=64,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=f"{chip.gcn_architecture}:sramecc+:xnack-",
        **{name: fact for name, fact in known.items() if fact is not None},
    )


def versions(chip: Chip) -> list[StandIn]:
    """`torch.version.hip` and `.cuda`: of the two, a build has one."""
    if not chip.gcn_architecture:
        return [StandIn(torch.version, "cuda", torch.version.cuda or releases.HERE.cuda)]
    return [StandIn(torch.version, "cuda", None), StandIn(torch.version, "hip", releases.HIP)]
