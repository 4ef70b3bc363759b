"""Attention masks: which memory the efficient kernel's bias takes, request by request."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchtally
from tests.traces import traced

RECORDED = json.loads((Path(__file__).parents[1] / "truth" / "operators.json").read_text())
BF16 = torch.bfloat16


def requested_by(bias: Any, shape: tuple[int, ...], keys: int) -> list[int]:
    """Bytes requested, in order, by one attention of queries of a shape under a mask."""
    batch, heads, _, head = shape
    begun = 0

    def attend() -> None:
        nonlocal begun
        query = torch.zeros(shape, dtype=BF16, device="cuda", requires_grad=True)
        key = torch.zeros(batch, heads, keys, head, dtype=BF16, device="cuda")
        mask = bias()
        begun = len({tensor.data_ptr() for tensor in (query, key, mask)})
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            F.scaled_dot_product_attention(query, key, key, mask)

    return [storage.requested_bytes for storage in traced(attend).storages][begun:]


MASKED_ROWS = [
    row
    for row in RECORDED["rows"]
    if row["op"] == "scaled_dot_product_attention efficient_attention with mask"
]


@pytest.mark.parametrize("row", MASKED_ROWS, ids=lambda row: str(row["shapes"][-1]))
def test_requests_are_those_of_pytorchs_cuda_build(row: dict[str, Any]):
    """Keys of 300: a bool mask of all heads becomes 8 x 100 x 300, then a copy of 8 x 100 x 304."""
    query, key, _value, mask = map(tuple, row["shapes"])
    requests = requested_by(
        lambda: torch.ones(mask, dtype=torch.bool, device="cuda"), query, key[2]
    )
    assert requests == [size for size in row["sequence"] if size > 0]


def bias_bytes(bias: Any, shape: tuple[int, ...], keys: int) -> list[int]:
    """Requests but for the kernel's output and a float32 for each query, in rows of 32."""
    batch, heads, queries, head = shape
    *copies, output, sums = requested_by(bias, shape, keys)
    assert output == 2 * batch * heads * queries * head
    assert sums == 4 * batch * heads * -(-queries // 32) * 32
    return copies


def zeros(*shape: int) -> Any:
    return lambda: torch.zeros(shape, dtype=BF16, device="cuda")


@pytest.mark.parametrize(
    ("bias", "copies"),
    [
        # 577 keys are padded to 584, in the mask's own shape.
        (zeros(577, 577), [2 * 577 * 584]),
        (zeros(1, 4, 577, 577), [2 * 4 * 577 * 584]),
        (zeros(8, 1, 1, 577), [2 * 8 * 584]),
        (lambda: zeros(577, 577)().expand(8, 4, 577, 577), [2 * 8 * 4 * 577 * 584]),
        # Rows of 584 elements, of which 577 are taken: nothing to do.
        (lambda: zeros(577, 584)()[:, :577], []),
        (lambda: zeros(584)()[:577].expand(577, 577), []),
    ],
)
def test_a_mask_of_odd_length_is_padded_to_8_before_it_is_expanded(bias: Any, copies: list[int]):
    assert bias_bytes(bias, (8, 4, 577, 64), 577) == copies


def test_a_mask_of_a_multiple_of_8_is_copied_where_its_rows_are_not():
    """64 of 65 columns: `pad_bias` adds 8 - 64 % 8 = 8 elements to each row."""
    shape = (2, 4, 64, 64)
    assert bias_bytes(zeros(64, 64), shape, 64) == []
    assert bias_bytes(lambda: zeros(64, 65)()[:, :64], shape, 64) == [2 * 64 * 72]


def test_a_shared_mask_of_odd_length_does_not_grow_with_the_batch():
    """BEiT's bias of 16 heads at 577 tokens is 10.8 MB once, not for each of 1,024 images."""

    def peak_bytes(batch: int) -> int:
        with torchtally.virtual_gpu("RTX-4090") as gpu, torch.inference_mode():
            query = torch.zeros(batch, 16, 577, 64, dtype=BF16, device="cuda")
            bias = torch.zeros(1, 16, 577, 577, dtype=BF16, device="cuda")
            F.scaled_dot_product_attention(query, query, query, bias)
            return gpu.peak_allocated_bytes

    query_bytes = 2 * 16 * 577 * 64
    bias_bytes = 2 * 16 * 577 * (577 + 584)
    assert peak_bytes(8) == pytest.approx(2 * 8 * query_bytes + bias_bytes, rel=0.03)
    assert peak_bytes(64) == pytest.approx(2 * 64 * query_bytes + bias_bytes, rel=0.03)
