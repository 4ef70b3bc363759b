"""Copies between host and device, over a bus of 10 GB/s."""

import pytest
from msgspec.structs import replace

from tests.timing.roofline.chips import host, kernel_of, toy
from tests.work.calls import call, spec
from torchtally.chips import chip
from torchtally.timing.constants import COPY_LATENCY_S, PAGEABLE_OF_PINNED, PINNED_SHARE
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call

MEGABYTE = 10**6


def to_device(size: int, *, is_pinned: bool) -> Call:
    return call("aten._to_copy", [host((size,), is_pinned=is_pinned)], spec(size, dtype="uint8"))


def to_host(size: int, *, is_pinned: bool) -> Call:
    source = spec(size, argument="self", dtype="uint8")
    return call("aten._to_copy", [source], host((size,), is_pinned=is_pinned))


@pytest.mark.parametrize("way", [to_device, to_host])
def test_pinned_memory_by_hand(way: object) -> None:
    kernel = kernel_of(way(MEGABYTE, is_pinned=True), toy())  # type: ignore[operator]
    assert kernel.seconds == pytest.approx(MEGABYTE / (1e10 * PINNED_SHARE) + COPY_LATENCY_S)
    assert kernel.bound is Bound.TRANSFER


def test_pageable_memory_is_slower() -> None:
    pinned, pageable = (
        kernel_of(to_device(10**9, is_pinned=flag), toy()).seconds for flag in (True, False)
    )
    assert pinned / pageable == pytest.approx(PAGEABLE_OF_PINNED, rel=0.01)


def test_a_small_copy_takes_the_latency() -> None:
    kernel = kernel_of(to_device(8, is_pinned=True), toy())
    assert kernel.bound is Bound.OVERHEAD
    assert kernel.seconds == pytest.approx(COPY_LATENCY_S, rel=0.01)


def test_copying_into_a_tensor_of_the_device() -> None:
    target = replace(spec(MEGABYTE, argument="self", dtype="uint8"), is_written=True)
    source = replace(host((MEGABYTE,), is_pinned=True), argument="src")
    one = call("aten.copy_", [target, source])
    assert kernel_of(one, toy()) == kernel_of(to_device(MEGABYTE, is_pinned=True), toy())


def test_a_copy_within_the_device_goes_by_its_memory() -> None:
    one = call(
        "aten.clone", [spec(10**8, argument="self", dtype="uint8")], spec(10**8, dtype="uint8")
    )
    assert kernel_of(one, toy()).bound is Bound.MEMORY


def test_without_a_known_link_memory_is_the_lower_bound() -> None:
    kernel = kernel_of(to_device(10**9, is_pinned=True), toy(host_link=None))
    assert kernel.seconds == pytest.approx(10**9 / 1e12 + COPY_LATENCY_S)


def test_half_a_gibibyte_to_an_a100_takes_what_was_measured() -> None:
    # 25.13 GB/s on an A100-SXM4-40GB: NVIDIA/nvbandwidth issue 42
    kernel = kernel_of(to_device(2**29, is_pinned=True), chip("A100-SXM-40GB"))
    assert kernel.seconds == pytest.approx(2**29 / 25.13e9, rel=0.05)
