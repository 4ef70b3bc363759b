"""Attention in full: two products forward, five backward."""

import pytest
import torch
from hypothesis import given as forall
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tests.torchs_counter import need_grouped_queries
from tests.work.calls import Recording, call, cost, given
from torchtally.trace import Call, TensorSpec
from torchtally.work import Kind, cost_of
from torchtally.work.attention import attended_share

aten = torch.ops.aten
B, H, S, T, D, E = 2, 4, 8, 16, 32, 24
FORWARD = 2 * B * H * S * T * (D + E)
BACKWARD = 2 * B * H * S * T * (3 * D + 2 * E)


def heads_first(kv_heads: int = H) -> list[TensorSpec]:
    return [
        given("query", B, H, S, D),
        given("key", B, kv_heads, T, D),
        given("value", B, kv_heads, T, E),
    ]


def heads_second() -> list[TensorSpec]:
    return [given("query", B, S, H, D), given("key", B, T, H, D), given("value", B, T, H, E)]


NAMES = [
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
]


@pytest.mark.parametrize("name", [*NAMES, "flash_attention_for_cpu", "attention_math"])
def test_forward_is_two_products(name: str) -> None:
    one = call(f"aten._scaled_dot_product_{name}", heads_first(), (B, H, S, E), is_causal=False)
    assert cost_of(one)[0] is Kind.ATTENTION
    assert cost(one).flops == FORWARD


@pytest.mark.parametrize("name", [*NAMES, "flash_attention_for_cpu"])
def test_backward_is_five_products(name: str) -> None:
    inputs = [given("grad_out", B, H, S, E), *heads_first()]
    one = call(f"aten._scaled_dot_product_{name}_backward", inputs, (B, H, S, D))
    assert cost(one).flops == BACKWARD


def test_causal_is_counted_in_full() -> None:
    one = call("aten.scaled_dot_product_attention", heads_first(), (B, H, S, E), is_causal=True)
    assert cost(one).flops == FORWARD


def test_shared_keys_and_values_cost_as_many_flops_and_fewer_bytes() -> None:
    name = "aten._scaled_dot_product_flash_attention"
    own = cost(call(name, heads_first(), (B, H, S, E)))
    shared = cost(call(name, heads_first(1), (B, H, S, E)))
    assert own.flops == shared.flops
    assert own.bytes_read - shared.bytes_read == 4 * B * (H - 1) * T * (D + E)


def test_flash_reads_three_tensors_and_writes_no_scores() -> None:
    lse = given("", B, H, S)
    name = "aten._scaled_dot_product_flash_attention"
    one = cost(call(name, heads_first(), (B, H, S, E), lse))
    assert one.bytes_read == 4 * B * H * (S * D + T * D + T * E)
    assert one.bytes_written == 4 * B * H * (S * E + S)


@pytest.mark.parametrize("name", ["_flash_attention", "_efficient_attention"])
def test_kernels_take_heads_second(name: str) -> None:
    forward = call(f"aten.{name}_forward", heads_second(), (B, S, H, E))
    assert cost(forward).flops == FORWARD
    grad = given("grad_out", B, S, H, E)
    backward = call(f"aten.{name}_backward", [grad, *heads_second()], (B, S, H, D))
    assert cost(backward).flops == BACKWARD


def packed(lengths: list[int], longest: int) -> Call:
    total = sum(lengths)
    inputs = [
        given("query", total, H, D),
        given("key", total, H, D),
        given("value", total, H, D),
        given("cum_seq_q", len(lengths) + 1, dtype="int32"),
        given("cum_seq_k", len(lengths) + 1, dtype="int32"),
    ]
    name = "aten._flash_attention_forward"
    return call(name, inputs, (total, H, D), max_q=longest, max_k=longest)


def test_packed_sequences_of_one_length_are_exact() -> None:
    assert cost(packed([8, 8, 8], 8)).flops == 3 * (2 * H * 8 * 8 * (D + D))


@forall(st.lists(st.integers(1, 64), min_size=1, max_size=8))
def test_packed_sequences_are_bounded_from_above(lengths: list[int]) -> None:
    exact = sum(2 * H * n * n * 2 * D for n in lengths)
    padded = len(lengths) * 2 * H * max(lengths) ** 2 * 2 * D
    assert exact <= cost(packed(lengths, max(lengths))).flops <= padded


def test_cudnn_kernel_takes_heads_first_or_packed() -> None:
    dense = call("aten._cudnn_attention_forward", heads_first(), (B, H, S, E))
    assert cost(dense).flops == FORWARD
    sequences = packed([8, 8, 8], 8)
    cudnn = Call(
        "aten._cudnn_attention_forward",
        "default",
        sequences.inputs,
        sequences.outputs,
        sequences.literals,
    )
    assert cost(cudnn).flops == cost(sequences).flops
    backward = call("aten._cudnn_attention_backward", heads_first(), (B, H, S, D))
    assert cost(backward).flops == BACKWARD


def test_inference_path_of_multihead_attention() -> None:
    # four (E, E) projections of S tokens, and two products of S * S * E
    E, S = 8, 4
    inputs = [
        given("query", 1, S, E),
        given("key", 1, S, E),
        given("qkv_weight", 3 * E, E),
        given("proj_weight", E, E),
    ]
    one = call("aten._native_multi_head_attention", inputs, (1, S, E))
    assert cost(one).flops == 2 * S * 4 * E * E + 2 * 2 * S * S * E


def test_inference_path_of_an_encoder_layer() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 32, batch_first=True).eval()
    with torch.no_grad(), Recording() as recording:
        layer(torch.ones(1, 4, 8))
    (one,) = recording.named("aten._transformer_encoder_layer_fwd")
    assert cost(one).flops == 2 * 4 * (4 * 64 + 2 * 8 * 32) + 4 * 4 * 4 * 8


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=torch.bfloat16)


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_flash_equals_torchs_counter(kv_heads: int) -> None:
    if kv_heads != 4:
        need_grouped_queries()
    q, k, v = meta(2, 4, 128, 64), meta(2, kv_heads, 256, 64), meta(2, kv_heads, 256, 64)
    with FlopCounterMode(display=False) as counter, Recording() as recording:
        results = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = results
        aten._scaled_dot_product_flash_attention_backward(
            out, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
        )
    assert recording.total.flops == counter.get_total_flops()


def test_efficient_equals_torchs_counter() -> None:
    q, k, v = meta(2, 4, 128, 64), meta(2, 4, 256, 64), meta(2, 4, 256, 32)
    with FlopCounterMode(display=False) as counter, Recording() as recording:
        out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)
        bias = meta(0)
        mask = [True, True, True, False]
        aten._scaled_dot_product_efficient_attention_backward(
            out, q, k, v, bias, out, lse, seed, offset, 0.0, mask
        )
    assert recording.total.flops == counter.get_total_flops()


# Windows: keys before and after a query's own ----------------------------------------------------


def windowed(name: str, **literals: int | bool | tuple[int, int]) -> Call:
    inputs = [given(each, B, 64, H, D) for each in ("query", "key", "value")]
    return call(name, inputs, (B, 64, H, D), **literals)


@pytest.mark.parametrize(
    ("name", "literals", "keys"),
    [
        ("aten._flash_attention_forward", {"window_size_left": 7, "is_causal": True}, 8),
        ("aten._flash_attention_forward", {"window_size_left": 7, "window_size_right": 2}, 10),
        ("aten._flash_attention_forward", {"window_size_left": -1, "window_size_right": -1}, 64),
        ("aten._flash_attention_forward", {"window_size_left": 100, "is_causal": True}, 64),
        ("aten._efficient_attention_forward", {"window_size": 8, "custom_mask_type": 1}, 8),
        ("torch_attn._varlen_attn", {"window_size": (7, 0)}, 8),
    ],
)
def test_a_window_is_counted_by_its_width(
    name: str, literals: dict[str, int | bool | tuple[int, int]], keys: int
) -> None:
    assert cost(windowed(name, **literals)).flops == 2 * B * H * 64 * keys * (D + D)


@pytest.mark.parametrize(
    ("literals", "keys"),
    [
        ({"is_causal": True}, 64 / 2),
        ({"is_causal": True, "window_size_left": 7}, 8 - 8 * 8 / (2 * 64)),
        ({}, 64),
    ],
)
def test_what_a_kernel_masks_by_itself(literals: dict[str, int | bool], keys: float) -> None:
    one = windowed("aten._flash_attention_forward", **literals)
    share = attended_share(one)
    assert cost(one).flops * share == 2 * B * H * 64 * keys * (D + D)


def test_a_mask_that_is_a_tensor_leaves_out_nothing() -> None:
    inputs = [*heads_first(), given("attn_bias", B, H, S, T)]
    one = call("aten._scaled_dot_product_cudnn_attention", inputs, (B, H, S, E), is_causal=False)
    assert cost(one).flops == FORWARD
    assert attended_share(one) == 1


def test_packed_sequences_of_known_lengths_are_exact() -> None:
    one = packed([8, 5, 5, 2], 8)
    known = Call(
        one.name, one.overload, one.inputs, one.outputs,
        (*one.literals, ("lengths_q", (8, 5, 5, 2)), ("lengths_k", (8, 5, 5, 2))),
    )  # fmt: skip
    assert cost(known).flops == 2 * H * (8 * 8 + 2 * 5 * 5 + 2 * 2) * (D + D)
    assert cost(known).flops < cost(one).flops
