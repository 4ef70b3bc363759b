"""Batches of a training: data, order and ring combined."""

import sys

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from torchtally.errors import UsageError
from torchtally.train.data.order import Mixture, Order
from torchtally.train.data.ring import DEPTH, Fill, Ring
from torchtally.train.data.token_data import TokenData

BLOCK_POSITIONS = 1 << 14
"""Positions of the order computed at a time, since a NumPy call costs more than its work."""
CHUNK_TOKENS = 1 << 18
"""Read at a time where a batch is smaller: 2 MiB of int64."""
EVERY_STEP = range(sys.maxsize)


def batches(
    data: TokenData,
    order: Order | Mixture,
    steps: range = EVERY_STEP,
    part: slice = slice(None),
    *,
    device: torch.device | str = "cpu",
    depth: int = DEPTH,
) -> Ring:
    """Prefetches a rank's rows of each step's global batch. `data` must outlive the ring."""
    rows = len(range(order.batch)[part])
    return Ring(
        fill_from(data, order, part), steps, rows=rows, width=data.width, device=device,
        depth=depth, chunk_steps=max(CHUNK_TOKENS // (rows * data.width), 1),
    )  # fmt: skip


def batch_at(
    data: TokenData, order: Order, step: int, part: slice = slice(None)
) -> Int64[Tensor, "rows width"]:
    """The tokens of a step's batch, read now: for evaluation and inspection."""
    windows = order.windows_of(step)[0, part]
    tokens = torch.empty((len(windows), data.width), dtype=torch.int64)
    data.read(windows, tokens.numpy())
    return tokens


def fill_from(data: TokenData, order: Order | Mixture, part: slice) -> Fill:
    """A function that reads these rows of each batch of some steps.

    The order of many steps is computed at once and cached. Raises UsageError if the order belongs
    to other data.
    """
    if order.windows != data.windows:
        raise UsageError(f"the order has {order.windows} windows, the data {data.windows}.")
    block_steps = max(BLOCK_POSITIONS // order.batch, 1)
    first, block = 0, order.windows_of(0, 0)

    def fill(step: int, out: Int64[np.ndarray, "steps rows width"]) -> None:
        nonlocal first, block
        steps = len(out)
        if not first <= step <= step + steps <= first + len(block):
            first, block = step, order.windows_of(step, max(block_steps, steps))
        windows = block[step - first : step - first + steps, part]
        data.read(windows.reshape(-1), out.reshape(-1, data.width))

    return fill
