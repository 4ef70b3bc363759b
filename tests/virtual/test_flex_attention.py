"""`flex_attention`: fused where it is compiled, plain products elsewhere, by what its mask leaves.

B, H: batch and heads.  S: tokens.  D: head dim.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import torchtally
from tests.traces import names, traced
from torchtally.chips import chip
from torchtally.timing.roofline.attention import attention_kernel
from torchtally.trace import Call, Trace
from torchtally.virtual.compiling import request
from torchtally.work import Kind, cost_of
from torchtally.work.convention import Convention, needed_share


@pytest.fixture(autouse=True)
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled runs eagerly, but for flex_attention, which is one kernel then."""
    monkeypatch.setattr(request, "find_spec", lambda name: None)


B, H, S, D = 2, 4, 1024, 64
WINDOW, BLOCK = 256, 128
PAIRS = B * H * S * S

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < WINDOW)


def everything(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= 0


def masked_by(mask_mod: Callable[..., Tensor] | None, tokens: int = S) -> BlockMask | None:
    if mask_mod is None:
        return None
    return create_block_mask(mask_mod, None, None, tokens, tokens, device="cuda")


def attend(
    mask_mod: Callable[..., Tensor] | None = None, *, is_compiled: bool = True, kv_heads: int = H,
    is_trained: bool = True, **options: Any,
) -> None:  # fmt: skip
    """Forward, and backward where it is trained."""
    q, k, v = (
        torch.randn(B, heads, S, D, device="cuda", dtype=torch.bfloat16, requires_grad=is_trained)
        for heads in (H, kv_heads, kv_heads)
    )
    run = torch.compile(flex_attention) if is_compiled else flex_attention
    options["enable_gqa"] = kv_heads != H
    out = run(q, k, v, block_mask=masked_by(mask_mod), **options)
    assert out.shape == q.shape
    if is_trained:
        out.sum().backward()
        assert [t.grad.shape for t in (q, k, v)] == [t.shape for t in (q, k, v)]  # type: ignore[union-attr]


def calls(trace: Trace) -> list[Call]:
    return [call for call in trace.calls if cost_of(call)[0] is Kind.ATTENTION]


def test_a_compiled_call_is_one_kernel_forward_and_one_backward() -> None:
    forward, backward = calls(traced(attend))
    assert forward.name == "torchtally.flex_attention"
    assert cost_of(forward)[1].flops == 2 * PAIRS * (D + D)
    assert cost_of(backward)[1].flops == 2 * PAIRS * (3 * D + 2 * D)


@pytest.mark.parametrize(
    ("mask_mod", "most", "left", "blocks"),
    [
        (causal, S, S * (S + 1) // 2, 8 * 9 // 2),
        (window, WINDOW, S * WINDOW - WINDOW * (WINDOW - 1) // 2, 1 + 2 + 6 * 3),
        (everything, S, S * S, 64),
    ],
)
def test_it_counts_what_its_block_mask_leaves(
    mask_mod: Callable[..., Tensor], most: int, left: int, blocks: int
) -> None:
    for call in calls(traced(lambda: attend(mask_mod))):
        products = 5 if "backward" in call.name else 2
        assert cost_of(call)[1].flops == products * 2 * B * H * S * most * D
        assert needed_share(call, Convention.FULL) == 1
        assert needed_share(call, Convention.CAUSAL) == left / (S * most)
        assert call.literal("computed") == B * H * blocks * BLOCK**2


def test_a_mask_may_ask_tensors_of_the_device() -> None:
    """Four documents of 256 tokens; heads 2 and 3 see all of their document, the others less."""

    def script() -> None:
        document = torch.arange(S, device="cuda") // WINDOW
        first = torch.tensor([True, True, False, False], device="cuda")

        def within(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (document[q] == document[k]) & ((q >= k) | ~first[h])

        q = torch.randn(B, H, S, D, device="cuda", dtype=torch.bfloat16)
        mask = create_block_mask(within, None, H, S, S, device="cuda")
        for _ in range(2):
            torch.compile(flex_attention)(q, q, q, block_mask=mask)

    left = B * 4 * (2 * WINDOW * (WINDOW + 1) // 2 + 2 * WINDOW**2)
    for call in calls(traced(script)):
        assert call.literal("attended") == (PAIRS // 4, left)


def test_a_mask_of_unknown_values_counts_in_full_and_is_listed() -> None:
    def script() -> None:
        kept = torch.randn(S, 8, device="cuda").sum(1) > 0

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return kept[k]

        attend(mask)

    trace = traced(script)
    assert [call.literal("attended") for call in calls(trace)] == [(), ()]
    assert cost_of(calls(trace)[0])[1].flops == 2 * PAIRS * (D + D)
    assert [note.count for note in trace.notes if "block mask of unknown values" in note.text] == [
        1
    ]


def test_a_masked_block_takes_no_time() -> None:
    def seconds(mask_mod: Callable[..., Tensor]) -> float:
        def script() -> None:
            q, k, v = (
                torch.randn(8, 32, 4096, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)
            )
            torch.compile(flex_attention)(q, k, v, block_mask=masked_by(mask_mod, 4096))

        (call,) = calls(traced(script))
        return attention_kernel(call, cost_of(call)[1], chip("H100-SXM")).seconds

    full, half, tenth = map(seconds, (everything, causal, window))
    assert full / half == pytest.approx(2, rel=0.08)
    assert full / tenth > 8


def test_grouped_heads_are_counted_for_every_query_head() -> None:
    forward, backward = calls(traced(lambda: attend(causal, kv_heads=1)))
    assert cost_of(forward)[1].flops == 2 * PAIRS * (D + D)
    assert [spec.shape[1] for spec in backward.outputs] == [H, H, 1, 1]


def test_memory_of_the_kernel_is_that_of_its_results() -> None:
    """Compiled: q, k, v, the result, two floats a row and the numbers of blocks. Plain: scores of
    float32, several times.
    """

    def peak_bytes(*, is_compiled: bool) -> int:
        with torchtally.virtual_gpu("H100-SXM") as gpu:
            attend(is_compiled=is_compiled, is_trained=False)
            return gpu.peak_allocated_bytes

    tensor, rows = B * H * S * D * 2, B * H * S * 4
    assert peak_bytes(is_compiled=True) == 4 * tensor + 2 * rows + 4 * 512
    assert peak_bytes(is_compiled=False) > 3 * 4 * PAIRS


def test_what_backward_needs_is_saved() -> None:
    """The result, a float for each of its rows, and the numbers of blocks; maxima are gone."""
    with torchtally.virtual_gpu("H100-SXM") as gpu:
        q = torch.randn(B, H, S, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        run = torch.compile(flex_attention)
        before = gpu.allocated_bytes
        out = run(q, q, q)
        tensor, rows = B * H * S * D * 2, B * H * S * 4
        assert gpu.allocated_bytes - before - 4 * 512 == tensor + rows
        del out


def test_autocast_casts_queries_keys_and_values() -> None:
    def script() -> None:
        q = torch.randn(B, H, S, D, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = torch.compile(flex_attention)(q, q, q)
        assert out.dtype is torch.bfloat16
        out.sum().backward()
        assert q.grad is not None
        assert q.grad.dtype is torch.float32

    assert {spec.dtype for call in calls(traced(script)) for spec in call.inputs} <= {
        "bfloat16", "float32", "int32",
    }  # fmt: skip


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_it_runs_without_gradients(context: Callable[[], Any], is_compiled: bool) -> None:
    def script() -> None:
        with context():
            attend(causal, is_compiled=is_compiled, is_trained=False)

    assert len(calls(traced(script))) == is_compiled


def test_a_compiled_module_runs_the_kernel() -> None:
    class Layer(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return flex_attention(q, q, q)  # type: ignore[return-value]

    def script() -> None:
        q = torch.randn(B, H, S, D, device="cuda", dtype=torch.bfloat16)
        layer = Layer()
        torch.compile(layer)(q)
        layer(q)
        layer.compile()
        layer(q)

    assert names(traced(script)).count("torchtally.flex_attention") == 2


def test_torch_warns_where_it_is_not_compiled_only() -> None:
    with torchtally.virtual_gpu("H100-SXM"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attend()
        assert not [each for each in caught if "flex_attention called" in str(each.message)]


def test_heads_that_tritons_products_are_too_large_for_are_refused() -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        q = torch.randn(1, 1, 128, 8, device="cuda")
        with pytest.raises(NotImplementedError, match="at least 16 but got E=8"):
            torch.compile(flex_attention)(q, q, q)


def test_plain_products_give_what_attention_by_hand_gives() -> None:
    """A toy has values: results and gradients are those of the formula on the host, of a bias that
    `score_mod` looks up and of a slope, too.
    """
    torch.manual_seed(0)
    host = [torch.randn(1, 2, 8, 4) for _ in range(3)]
    host_bias = torch.randn(2, 8)

    def by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / 2 + bias[None, :, :, None]
        hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    def by_flex(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + bias[h, q]

        mask = create_block_mask(causal, None, None, 8, 8, device="cuda")
        return flex_attention(q, k, v, score_mod=add_bias, block_mask=mask)  # type: ignore[return-value]

    def results(attention: Callable[..., Tensor], device: str) -> list[list[float]]:
        leaves = [t.to(device).detach().requires_grad_() for t in (*host, host_bias)]
        out = attention(*leaves)
        (out * torch.arange(4.0, device=device)).sum().backward()
        actual = [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]
        return [tensor.flatten().tolist() for tensor in actual]

    expected = results(by_hand, "cpu")
    with torchtally.virtual_gpu("H100-SXM"):
        actual = results(by_flex, "cuda")
    assert len(actual) == len(expected) == 5
    for one, other in zip(actual, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_table_that_scores_look_up_is_trained(is_compiled: bool) -> None:
    def script() -> None:
        slopes = nn.Parameter(torch.ones(H, device="cuda"))

        def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + slopes[h] * (k - q)

        attend(causal, is_compiled=is_compiled, score_mod=alibi)
        assert slopes.grad is not None
        assert slopes.grad.shape == slopes.shape

    trace = traced(script)
    assert all(cost_of(call)[0] is not Kind.UNCOUNTED for call in trace.calls)
