"""Copies between host and device as the trace keeps them: from which memory, and how."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.traces import FullOp, ops, traced
from torchtally.trace import Trace

BIG = 1 << 20
"""Floats: more than are real on the host."""


def copies(trace: Trace) -> list[FullOp]:
    return [op for op in ops(trace) if op.call.name in ("aten._to_copy", "aten.copy_")]


def host_side(op: FullOp) -> bool:
    """Whether the host's tensor of a copy is pinned."""
    (spec,) = (spec for spec in (*op.call.inputs, *op.call.outputs[:1]) if not spec.is_on_device)
    return spec.is_pinned


@pytest.mark.parametrize("size", [4, BIG], ids=["real", "virtual"])
def test_pinned_and_pageable_sources(size: int):
    def script() -> None:
        host, by_factory = torch.zeros(size), torch.empty(size, pin_memory=True)
        for source in (host, host.pin_memory(), by_factory, by_factory[1:]):
            source.cuda()

    assert [host_side(op) for op in copies(traced(script))] == [False, True, True, True]


def test_a_copy_from_pinned_memory_is_another_call():
    """The same operator and shape otherwise; the second of each is the same call."""

    def script() -> None:
        host = torch.zeros(4)
        pinned = host.pin_memory()
        for source in (host, pinned, host, pinned):
            source.to("cuda")

    pageable, pinned, pageable_again, pinned_again = (op.call for op in copies(traced(script)))
    assert pageable != pinned
    assert pageable is pageable_again
    assert pinned is pinned_again


def test_batches_of_a_loader_that_pins():
    def script(**options: bool) -> Callable[[], None]:
        def run() -> None:
            data = TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
            for x, y in DataLoader(data, batch_size=2, **options):
                x.cuda(non_blocking=True), y.cuda()

        return run

    pinned, pageable = traced(script(pin_memory=True)), traced(script())
    assert [host_side(op) for op in copies(pinned)] == [True] * 4
    assert [host_side(op) for op in copies(pageable)] == [False] * 4


def test_non_blocking_is_in_the_call():
    def script() -> None:
        host = torch.zeros(4).pin_memory()
        device = host.to("cuda", non_blocking=True)
        host.to("cuda")
        device.copy_(host, non_blocking=True)
        device.copy_(host, True)
        device.copy_(host)

    flags = [op.call.literal("non_blocking", False) for op in copies(traced(script))]
    assert flags == [True, False, True, True, False]


def test_an_asynchronous_copy_to_the_host_makes_pinned_memory():
    """As PyTorch's `_to_copy`: its copy could not be asynchronous else."""
    shown = []

    def script() -> None:
        for size in (4, BIG):
            device = torch.zeros(size, device="cuda")
            shown.extend(
                [device.cpu().is_pinned(), device.to("cpu", non_blocking=True).is_pinned()]
            )

    trace = traced(script)
    assert shown == [False, True, False, True]
    assert [op.call.outputs[0].is_pinned for op in copies(trace)] == shown


def test_nothing_on_the_device_is_pinned():
    def script() -> None:
        x = torch.zeros(4).pin_memory().cuda()
        x @ x

    (product,) = ops(traced(script), "aten.dot")
    assert not any(spec.is_pinned for spec in (*product.call.inputs, *product.call.outputs))
