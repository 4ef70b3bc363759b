"""Counting what a block mask leaves: by its function, and by the blocks that a kernel reads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from torchtally.virtual import block_masks
from torchtally.virtual.block_masks import Blocks, Counts, ask, in_blocks

S = 300
DOCUMENTS = torch.arange(S) // 70
BLOCK = (32, 64)
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (DOCUMENTS[q] == DOCUMENTS[k])


def window_by_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 40 * (h + 1))


@pytest.mark.parametrize("mask_mod", [causal, documents, window_by_head])
def test_both_ways_count_the_same(mask_mod: MaskMod) -> None:
    heads = 3 if mask_mod is window_by_head else 1
    mask = create_block_mask(mask_mod, 1, heads, S, S, device="cpu", BLOCK_SIZE=BLOCK)
    blocks = Blocks(
        mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    )
    scores = (1, heads, S, S)
    assert in_blocks(mask_mod, scores, BLOCK, blocks) == ask(mask_mod, scores, BLOCK)


def test_blocks_that_are_not_listed_are_not_read() -> None:
    """As in a script that makes its own lists: of a causal mask the diagonal alone."""
    rows = 4
    blocks = Blocks(
        torch.ones(1, 1, rows, dtype=torch.int32),
        torch.arange(rows).view(1, 1, rows, 1).expand(1, 1, rows, rows),
        None,
        None,
    )
    counts = in_blocks(causal, (1, 1, 4 * 64, 4 * 64), (64, 64), blocks)
    attended = rows * 64 * 65 // 2
    assert counts == Counts([4 * 64 * 64, attended], rows * 64 * 64)


def test_a_part_of_a_large_mask_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ask(causal, (1, 1, 2048, 2048), (128, 128))
    monkeypatch.setattr(block_masks, "MOST_PAIRS", 2048 * 2048 // 8)
    estimate = ask(causal, (1, 1, 2048, 2048), (128, 128))
    assert estimate.is_estimate
    assert not exact.is_estimate
    assert exact.computed is not None
    assert estimate.computed == pytest.approx(exact.computed, rel=0.1)
    assert estimate.computed != exact.computed
