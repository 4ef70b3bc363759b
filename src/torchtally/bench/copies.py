"""Copies between host and GPU, from pinned and from pageable memory."""

from collections.abc import Iterator
from functools import partial

import torch

from torchtally.bench.work import OpCall, Plan, work

SIZES_BYTES = (4, 4096, 2**16, 2**20, 2**24, 2**28)


def to_device(n: int, is_pinned: bool, device: torch.device) -> OpCall:
    there = torch.empty(n, dtype=torch.uint8, device=device)
    here = torch.zeros(n, dtype=torch.uint8, pin_memory=is_pinned)
    return work(torch.ops.aten.copy_.default, there, here, is_pinned)


def to_host(n: int, is_pinned: bool, device: torch.device) -> OpCall:
    there = torch.zeros(n, dtype=torch.uint8, device=device)
    here = torch.empty(n, dtype=torch.uint8, pin_memory=is_pinned)
    return work(torch.ops.aten.copy_.default, here, there, is_pinned)


def copies(device: torch.device) -> Iterator[Plan]:
    """A host has none: host and device are one."""
    if device.type == "cpu":
        return
    for n in SIZES_BYTES:
        for is_pinned in (True, False):
            yield partial(to_device, n, is_pinned, device)
            yield partial(to_host, n, is_pinned, device)
