"""Calibrations for tests: a few samples whose rates a reader can work out in their head."""

from msgspec import structs

from tests.builders import mm_call, spec
from torchtally.timing.calibration import Calibration, Issue, Sample
from torchtally.trace import Call

H100 = "NVIDIA H100 80GB HBM3"


def product(m: int, n: int, k: int, flop_per_s: float, dtype: str = "bfloat16") -> Sample:
    return Sample(mm_call(m, k, n, dtype), 2 * m * n * k / flop_per_s)


def attention(seconds: float, *, is_causal: bool, is_backward: bool = False) -> Sample:
    """4 x 8 x 16: forward 4*4*8*8*16 = 16384 FLOPs, backward 2.5 times as many."""
    names = ("query", "key", "value")
    specs = tuple(
        spec(1, 4, 8, 16, argument=name, storage=n, dtype="bfloat16")
        for n, name in enumerate(names)
    )
    name = "aten._scaled_dot_product_flash_attention" + "_backward" * is_backward
    outputs = tuple(
        structs.replace(tensor, argument="", storage=tensor.storage + 3) for tensor in specs
    )
    return Sample(Call(name, "default", specs, outputs, (("is_causal", is_causal),)), seconds)


def copy(size: int, bytes_per_s: float, *, is_to_device: bool, is_pinned: bool) -> Sample:
    there = spec(size, argument="self" if is_to_device else "src", dtype="uint8", storage=0)
    here = spec(
        size,
        argument="src" if is_to_device else "self",
        dtype="uint8",
        storage=1,
        device="cpu",
        is_pinned=is_pinned,
    )
    ends = (there, here) if is_to_device else (here, there)
    call = Call("aten.copy_", "default", ends, ends[:1], (), is_mutating=True)
    return Sample(call, size / bytes_per_s)


def gpu(*samples: Sample, device: str = H100) -> Calibration:
    """An H100 whose best products reached half of the promise."""
    kernels = samples or (
        product(1024, 1024, 1024, 494.7e12),
        product(1024, 1024, 1024, 33.5e12, "float32"),
        product(1024, 512, 1024, 100e12),
        attention(1e-9, is_causal=False),
        attention(2e-9, is_causal=True, is_backward=True),
        copy(2**20, 31.5e9, is_to_device=True, is_pinned=True),
        copy(2**20, 6.3e9, is_to_device=False, is_pinned=False),
    )
    return Calibration(
        device=device,
        kind="cuda",
        torch_version="2.13.0",
        date="2026-06-30",
        memory_bytes=80 * 2**30,
        threads=None,
        peak_flop_per_s={"bfloat16": 494.7e12, "float32": 33.5e12},
        bandwidth_bytes_per_s=3.015e12,
        first_touch_s_per_byte=0.0,
        issue=Issue(1e-5, 8e-6, 5e-6, 1e-6, 2e-6),
        samples=kernels,
        conditions={"clocks.sm": "1980 MHz"},
    )


def cpu(device: str = "Some CPU @ 2.00GHz") -> Calibration:
    """Two threads of a CPU that nobody promises anything of."""
    return structs.replace(
        gpu(
            product(64, 64, 64, 64e9, "float32"),
            product(64, 64, 64, 32e9, "bfloat16"),
            device=device,
        ),
        kind="cpu",
        threads=2,
        peak_flop_per_s={"float32": 64e9, "bfloat16": 32e9},
        bandwidth_bytes_per_s=1e10,
        issue=Issue(1e-5, 8e-6, 5e-6, 1e-6, 0.0),
    )
