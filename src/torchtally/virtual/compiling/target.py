"""The chip as inductor and Triton ask for it."""

import functools
from typing import Any

import torch

from torchtally.chips import Chip
from torchtally.torch_private import fp32_precision
from torchtally.virtual.stand_ins import StandIn, instead_of


def exchange(device: int) -> int:
    before = torch.cuda.current_device()
    if device >= 0:
        torch.cuda.set_device(device)
    return before


TERA, GIGA = 1e12, 1e9


def stand_ins(compiler: Any, chip: Chip) -> list[StandIn]:
    """Inductor's view of the device, whose functions are bound when it is imported."""

    def capability(device: Any = None) -> int:
        major, minor = torch.cuda.get_device_capability(device)
        return 10 * major + minor

    answers: dict[str, Any] = {
        "current_device": lambda: torch.cuda.current_device(),
        "set_device": lambda device: torch.cuda.set_device(device),
        "device_count": lambda: torch.cuda.device_count(),
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: torch.cuda.get_device_properties(device),
        "is_bf16_supported": lambda including_emulation=True: torch.cuda.is_bf16_supported(),
        "memory_allocated": lambda device=None: 0,
        "get_raw_stream": lambda device: 0,
        "is_available": lambda: True,
        "get_compute_capability": capability,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
    }
    # A function for each: Dynamo registers them by identity.
    exchanges = [instead_of(name, functools.partial(exchange)) for name in compiler.EXCHANGES]

    def tera_flop_per_s(dtype: torch.dtype) -> float:
        uses_tf32 = dtype is torch.float32 and fp32_precision("cuda", "matmul") == "tf32"
        return chip.peak_flop_per_s("tf32" if uses_tf32 else str(dtype)) / TERA

    giga_bytes_per_s = chip.memory_bandwidth_bytes_per_s / GIGA
    interface = compiler.INTERFACE
    answers |= {
        "exchange_device": functools.partial(exchange),
        "maybe_exchange_device": functools.partial(exchange),
    }
    worker = compiler.INTERFACE_WORKER
    return [
        *(StandIn(interface, name, staticmethod(value)) for name, value in answers.items()),
        *(StandIn(worker, name, staticmethod(answers[name])) for name in OF_WORKER),
        *exchanges,
        *(instead_of(name, tera_flop_per_s) for name in compiler.RATES),
        *(instead_of(name, lambda: giga_bytes_per_s) for name in compiler.BANDWIDTHS),
    ]


OF_WORKER = ("get_device_properties", "current_device")
