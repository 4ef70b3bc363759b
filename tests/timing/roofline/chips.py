"""A chip of round numbers, and calls for the model of data sheets."""

from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from tests.work.calls import call, given, spec
from torchtally.chips import Chip, Link, Peak
from torchtally.timing.roofline.datasheet import datasheet_kernel
from torchtally.timing.roofline.kernel import Kernel
from torchtally.trace import Call, Literal, TensorSpec
from torchtally.work import cost_of


def toy(**changes: object) -> Chip:
    """Ten multiprocessors; 1 TFLOP/s in half precision; 1 TB/s; it keeps every promise."""
    rates = {"float16": 1e12, "tf32": 5e11, "float32": 1e13, "float64": 5e12}
    plain = Chip(
        name="Toy",
        vendor="Toys",
        architecture="Toy",
        memory_bytes=10**10,
        memory_bandwidth_bytes_per_s=1e12,
        achieved_bandwidth_bytes_per_s=1e12,
        peaks=MappingProxyType(
            {name: Peak(rate, "toy", achieved_flop_per_s=rate) for name, rate in rates.items()}
        ),
        source="toy",
        multiprocessors=10,
        link=Link("toy link", 1e11),
        host_link=Link("toy bus", 1e10),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def kernel_of(one: Call, on: Chip) -> Kernel:
    return datasheet_kernel(one, *cost_of(one), on)


def mm(M: int, K: int, N: int, dtype: str = "float16", **literals: Literal) -> Call:
    inputs = [given("self", M, K, dtype=dtype), given("mat2", K, N, dtype=dtype)]
    return call("aten.mm", inputs, spec(M, N, dtype=dtype), **literals)


def bmm(B: int, M: int, K: int, N: int, dtype: str = "float16") -> Call:
    inputs = [given("self", B, M, K, dtype=dtype), given("mat2", B, K, N, dtype=dtype)]
    return call("aten.bmm", inputs, spec(B, M, N, dtype=dtype))


def add(elements: int, dtype: str = "float32") -> Call:
    inputs = [given("self", elements, dtype=dtype), given("other", elements, dtype=dtype)]
    return call("aten.add", inputs, spec(elements, dtype=dtype))


def host(shape: tuple[int, ...], *, is_pinned: bool, dtype: str = "uint8") -> TensorSpec:
    tensor = spec(*shape, argument="self", dtype=dtype, device="cpu")
    return structs.replace(tensor, is_pinned=is_pinned)
