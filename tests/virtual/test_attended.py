"""What a mask attends to, and how long packed sequences are: known from values, or from spans."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.traces import traced
from torchtally.trace import Call, Trace
from torchtally.virtual.facts.spans import Spans, both, compare_spans, spans_of, spans_of_triangle
from torchtally.work import cost_of
from torchtally.work.convention import Convention, needed_share

LARGE = 4096
"""Masks of its square have no values, which end at 8 MiB."""
WINDOW = 512


def ones_of(spans: Spans) -> Tensor:
    columns = torch.arange(spans.columns)
    return (columns >= spans.first[..., None]) & (columns < spans.end[..., None])


@given(
    keys=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    queries=st.lists(st.integers(-2, 11), min_size=2, max_size=8),
    name=st.sampled_from(["lt", "le", "gt", "ge", "eq"]),
    is_flipped=st.booleans(),
)
def test_positions_compared(
    keys: list[int], queries: list[int], name: str, is_flipped: bool
) -> None:
    row, column = torch.tensor(sorted(keys))[None], torch.tensor(queries)[:, None]
    pair = (column, row) if is_flipped else (row, column)
    spans = compare_spans(name, *pair)
    assert spans is not None
    assert torch.equal(ones_of(spans)[0], getattr(torch, name)(*pair))
    assert torch.equal(spans.counts[0], getattr(torch, name)(*pair).sum(-1))


def test_positions_that_fall_are_not_known() -> None:
    assert compare_spans("le", torch.tensor([[1, 0]]), torch.tensor([[0], [1]])) is None


@given(rows=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=3))
def test_padding(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows)[:, None, None]
    spans = spans_of(mask)
    is_one_piece = all("01" not in "".join(map(str, map(int, row))).strip("0") for row in rows)
    assert (spans is not None) is is_one_piece
    if spans is not None:
        assert torch.equal(ones_of(spans), mask[:, 0])


def test_two_masks_at_once() -> None:
    """Of four tokens, causal, of which the first sequence has three."""
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    padding = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)[:, None, None]
    positions = torch.arange(4)
    spans = compare_spans("le", positions[None], positions[:, None])
    rows = spans_of(padding)
    assert spans is not None
    assert rows is not None
    assert torch.equal(ones_of(spans & rows), (causal & padding)[:, 0])
    assert both(torch.tensor(True), torch.ones(1, 4, dtype=torch.bool)) is not None
    assert both(torch.tensor(False), torch.ones(1, 4, dtype=torch.bool)) is None


@pytest.mark.parametrize("diagonal", [-9, -1, 0, 2, 9])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name: str, diagonal: int) -> None:
    expected = getattr(torch.ones(4, 6, dtype=torch.bool), name)(diagonal)
    assert torch.equal(ones_of(spans_of_triangle(name, 4, 6, diagonal))[0], expected)


# Runs ------------------------------------------------------------------------------------------


def attend(tokens: int, mask_of: Callable[[int], Tensor], batch: int = 2) -> Callable[[], None]:
    """Forward and backward, four heads of 64."""

    def script() -> None:
        q, k, v = (
            torch.randn(batch, 4, tokens, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
            for _ in range(3)
        )
        F.scaled_dot_product_attention(q, k, v, mask_of(tokens)).sum().backward()

    return script


def window(tokens: int) -> Tensor:
    positions = torch.arange(tokens, device="cuda")
    keys, queries = positions[None, None, None], positions[None, None, :, None]
    return ((keys <= queries) & (keys > queries - WINDOW)).expand(2, -1, -1, -1)


def chunks(tokens: int) -> Tensor:
    positions = torch.arange(tokens, device="cuda")
    keys, queries = positions[None], positions[:, None]
    return (keys <= queries) & (keys // WINDOW == queries // WINDOW)


def padded(tokens: int) -> Tensor:
    """Causal; half of the second sequence is padding."""
    lengths = torch.tensor([tokens, tokens // 2], device="cuda")
    positions = torch.arange(tokens, device="cuda")
    is_token = positions[None] < lengths[:, None]
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril()
    return causal & is_token[:, None, None]


def unknown(tokens: int) -> Tensor:
    return torch.randn(tokens, tokens, device="cuda") > 0


def calls(trace: Trace) -> list[Call]:
    return [call for call in trace.calls if "attention" in call.name]


HEADS = 2 * 4


def in_window(n: int) -> int:
    return HEADS * (n * WINDOW - WINDOW * (WINDOW - 1) // 2)


def in_chunks(n: int) -> int:
    return HEADS * n * (WINDOW + 1) // 2


def in_padded(n: int) -> int:
    """The second half of the second sequence's queries see its first half."""
    return 4 * (n * (n + 1) // 2 + n // 2 * (n // 2 + 1) // 2 + (n // 2) ** 2)


@pytest.mark.parametrize("gpu", ["H100-SXM", "A100-SXM"])
@pytest.mark.parametrize("tokens", [1024, LARGE])
@pytest.mark.parametrize(
    ("mask_of", "most", "left"),
    [
        (window, lambda n: WINDOW, in_window),
        (chunks, lambda n: WINDOW, in_chunks),
        (padded, lambda n: n, in_padded),
    ],
)
def test_a_mask_says_what_it_attends_to(
    mask_of: Callable[[int], Tensor],
    most: Callable[[int], int],
    left: Callable[[int], int],
    tokens: int,
    gpu: str,
) -> None:
    forward, backward = calls(traced(attend(tokens, mask_of), gpu=gpu))
    for call in (forward, backward):
        assert call.literal("attended") == (HEADS * tokens * most(tokens), left(tokens))
        # the kernel computes all, whatever of it the model asks for
        points = HEADS * tokens**2
        assert cost_of(call)[1].flops == (5 if call is backward else 2) * 2 * points * 64
        assert needed_share(call, Convention.FULL) == most(tokens) / tokens
        assert needed_share(call, Convention.CAUSAL) * points == left(tokens)


@pytest.mark.parametrize("tokens", [LARGE])
def test_a_mask_of_unknown_values_counts_in_full(tokens: int) -> None:
    for call in calls(traced(attend(tokens, unknown))):
        assert call.literal("attended") is None
        assert needed_share(call, Convention.CAUSAL) == 1


def test_a_mask_that_is_written_to_is_not_known_any_more() -> None:
    def changed(tokens: int) -> Tensor:
        mask = window(tokens).contiguous()
        mask[:, :, 0] = torch.randn(tokens, device="cuda") > 0
        return mask

    trace = traced(attend(LARGE, changed))
    assert [call.literal("attended") for call in calls(trace)] == [None, None]


@pytest.mark.parametrize("gpu", ["H100-SXM", "A100-SXM", "T4"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_jagged_batch_costs_its_real_lengths(gpu: str, is_causal: bool) -> None:
    dtype = torch.float16 if gpu == "T4" else torch.bfloat16

    def script() -> None:
        q, k, v = (
            torch.nested.nested_tensor(
                [torch.randn(length, 4, 64) for length in (100, 20, 20)], layout=torch.jagged,
                device="cuda", dtype=dtype, requires_grad=True,
            ).transpose(1, 2) for _ in range(3)
        )  # fmt: skip
        F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).values().sum().backward()

    forward, backward = calls(traced(script, gpu=gpu))
    points = 4 * (100**2 + 2 * 20**2)
    assert forward.literal("lengths_q") == (100, 20, 20)
    assert cost_of(forward)[1].flops == 2 * 2 * points * 64
    assert cost_of(backward)[1].flops == 5 * 2 * points * 64
    for call in (forward, backward):
        assert needed_share(call, Convention.CAUSAL) == (0.5 if is_causal else 1)
