"""Which attention kernel runs on which chip, and what it holds for the backward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchtally
from tests.traces import accounted, names, ops, traced
from torchtally.torch_private.releases import HERE
from torchtally.trace import Phase, Trace

pytestmark = pytest.mark.one_case_in(3)

CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def attend(
    *,
    dtype: torch.dtype = BF16,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    queries: int = 64,
    keys: int | None = None,
    head: int = 64,
    value_head: int | None = None,
    mask: torch.dtype | None = None,
    trains: bool = False,
    **options: Any,
) -> torch.Tensor:
    """One attention on the device; tensors (batch, heads, length, head)."""
    keys = queries if keys is None else keys
    kv_heads = heads if kv_heads is None else kv_heads

    def tensor(*shape: int) -> torch.Tensor:
        query = torch.zeros(shape, dtype=dtype, device="cuda")
        return query.requires_grad_(trains)

    if mask is not None:
        options["attn_mask"] = torch.ones(queries, keys, dtype=mask, device="cuda")
    return F.scaled_dot_product_attention(
        tensor(batch, heads, queries, head),
        tensor(batch, kv_heads, keys, head),
        tensor(batch, kv_heads, keys, value_head or head),
        **options,
    )


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_call_says_whether_it_drops(share: float) -> None:
    trace = traced(lambda: attend(trains=True, dropout_p=share).sum().backward())
    calls = [call for call in trace.calls if "attention" in call.name]
    assert len(calls) == 2
    assert [call.literal("drops") for call in calls] == [True if share else None] * 2


KERNELS = {
    "aten._scaled_dot_product_cudnn_attention": CUDNN,
    "aten._scaled_dot_product_flash_attention": FLASH,
    "aten._scaled_dot_product_efficient_attention": EFFICIENT,
}


def backend(trace: Trace) -> str:
    """The one kernel that ran in the forward pass; two products of queries are the math one."""
    kernels = [KERNELS[name] for name in names(trace, Phase.FORWARD) if name in KERNELS]
    assert len(kernels) <= 1
    return kernels[0] if kernels else MATH


def backend_of(chip: str, call: Callable[[], object] | None = None, **asked: Any) -> str:
    return backend(traced(call or (lambda: attend(**asked)), chip))


@pytest.mark.parametrize(
    ("chip", "expected"),
    [("H100-SXM", CUDNN), ("B200", CUDNN), ("A100-SXM", FLASH), ("RTX-4090", FLASH),
     ("RTX-5090", FLASH), ("T4", MATH), ("V100-SXM-16GB", MATH)],
)  # fmt: skip
def test_bfloat16_goes_to_the_chips_first_choice(chip: str, expected: str):
    assert backend_of(chip) == expected
    assert backend_of(chip, is_causal=True) == expected
    assert backend_of(chip, trains=True) == expected


@pytest.mark.parametrize(
    ("chip", "expected"),
    [("H100-SXM", CUDNN), ("A100-SXM", FLASH), ("T4", EFFICIENT), ("V100-SXM-16GB", EFFICIENT)],
)
def test_float16(chip: str, expected: str):
    assert backend_of(chip, dtype=FP16) == expected


@pytest.mark.parametrize("chip", ["H100-SXM", "A100-SXM", "T4"])
def test_float32_goes_to_the_efficient_kernel(chip: str):
    assert backend_of(chip, dtype=FP32) == EFFICIENT
    assert backend_of(chip, dtype=FP32, is_causal=True, trains=True) == EFFICIENT
    assert backend_of(chip, dtype=torch.float64) == MATH


@pytest.mark.parametrize(("chip", "expected"), [("H100-SXM", CUDNN), ("A100-SXM", EFFICIENT)])
@pytest.mark.parametrize("mask", [torch.bool, BF16])
def test_a_mask_keeps_flash_away(chip: str, expected: str, mask: torch.dtype):
    assert backend_of(chip, mask=mask) == expected


ON_A100: list[tuple[str, dict[str, Any]]] = [
    (FLASH, {"head": 128}),
    (FLASH, {"head": 256}),
    (FLASH, {"head": 60}),  # padded to 64
    (EFFICIENT, {"head": 264}),  # flash stops at 256
    (EFFICIENT, {"value_head": 32}),
    (MATH, {"head": 260}),  # too big for flash, and no multiple of 8
    (FLASH, {"queries": 32, "keys": 64}),
    (EFFICIENT, {"queries": 32, "keys": 64, "is_causal": True}),
    (FLASH, {"queries": 1, "keys": 64}),
    (FLASH, {"dropout_p": 0.1}),
    (FLASH, {"heads": 8, "kv_heads": 2, "enable_gqa": True}),
    (FLASH, {"heads": 8, "kv_heads": 1, "enable_gqa": True, "trains": True}),
]
ON_H100: list[tuple[str, dict[str, Any]]] = [
    (CUDNN, {"head": 128}),
    (FLASH, {"head": 256}),
    (FLASH, {"head": 60}),  # cuDNN wants multiples of 8
    (CUDNN, {"value_head": 32}),
    (EFFICIENT, {"head": 264}),
    (CUDNN, {"queries": 32, "keys": 64}),
    (CUDNN, {"queries": 1, "keys": 64}),
    (FLASH if HERE.has_cudnn_drop_sixteenths else CUDNN, {"dropout_p": 0.1}),
    (CUDNN, {"dropout_p": 0.125}),
    (CUDNN, {"heads": 8, "kv_heads": 2, "enable_gqa": True}),
]


@pytest.mark.parametrize(("expected", "asked"), ON_A100)
def test_the_rules_on_an_a100(expected: str, asked: dict[str, Any]):
    assert backend_of("A100-SXM", **asked) == expected


@pytest.mark.parametrize(("expected", "asked"), ON_H100)
def test_the_rules_on_an_h100(expected: str, asked: dict[str, Any]):
    assert backend_of("H100-SXM", **asked) == expected


@pytest.mark.thorough
def test_large_heads_train_on_a_4090_only_where_shared_memory_suffices():
    assert backend_of("RTX-4090", head=256) == FLASH
    assert backend_of("RTX-4090", head=256, trains=True) == FLASH
    assert backend_of("RTX-4090", head=256, trains=True, dropout_p=0.1) == EFFICIENT
    assert backend_of("RTX-4090", head=224, trains=True) == EFFICIENT
    assert backend_of("RTX-4090", head=192, trains=True) == FLASH
    assert backend_of("A100-SXM", head=224, trains=True) == FLASH


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(SDPBackend.MATH, MATH), (SDPBackend.FLASH_ATTENTION, FLASH),
     (SDPBackend.EFFICIENT_ATTENTION, EFFICIENT), (SDPBackend.CUDNN_ATTENTION, CUDNN)],
)  # fmt: skip
@pytest.mark.parametrize("chip", ["H100-SXM", "A100-SXM"])
def test_the_users_choice_is_heeded(chip: str, chosen: SDPBackend, expected: str):
    def call() -> None:
        with sdpa_kernel([chosen]):
            attend()

    assert backend_of(chip, call) == expected


def test_the_users_order_is_heeded():
    def call() -> None:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
            attend()

    assert backend_of("H100-SXM", call) == EFFICIENT


def test_switches_of_torch_backends_cuda_are_heeded():
    def call() -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.enable_flash_sdp(False)
        try:
            attend()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)
            torch.backends.cuda.enable_flash_sdp(True)

    assert backend_of("H100-SXM", call) == EFFICIENT


def test_a_choice_that_does_not_fit_is_pytorchs_error():
    with (
        torchtally.virtual_gpu("H100-SXM"),
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        attend(dtype=FP32)


def test_grouped_queries_want_matching_heads():
    with torchtally.virtual_gpu("A100-SXM"), pytest.raises(RuntimeError):
        attend(heads=8, kv_heads=2)


@pytest.mark.thorough
def test_results_have_the_shapes_of_the_hosts():
    """The host's own operator is the oracle for shape, strides aside."""
    for asked in ({}, {"value_head": 32}, {"queries": 3, "keys": 7}, {"head": 60},
                  {"heads": 8, "kv_heads": 2, "enable_gqa": True}):  # fmt: skip
        options = dict(asked)
        kv = options.get("kv_heads", 4)
        host = F.scaled_dot_product_attention(
            torch.zeros(2, options.get("heads", 4), options.get("queries", 64),
                        options.get("head", 64)),
            torch.zeros(2, kv, options.get("keys", 64), options.get("head", 64)),
            torch.zeros(2, kv, options.get("keys", 64),
                        options.get("value_head", options.get("head", 64))),
            enable_gqa=options.get("enable_gqa", False),
        )  # fmt: skip
        for chip in ("H100-SXM", "A100-SXM", "T4"):
            with torchtally.virtual_gpu(chip):
                out = attend(**options)
                assert out.shape == host.shape
                assert out.dtype is BF16
                assert out.is_cuda


@pytest.mark.parametrize("chip", ["H100-SXM", "A100-SXM"])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_every_backend_has_its_backward(chip: str, dtype: torch.dtype):
    def step() -> None:
        attend(dtype=dtype, trains=True, is_causal=True).sum().backward()

    trace = traced(step, chip)
    forward = backend(trace)
    assert f"aten._scaled_dot_product_{forward}_attention_backward" in names(trace, Phase.BACKWARD)


def test_flops_of_a_square_attention_by_hand():
    """Two products forward, five backward (the scores are repeated): 2 B H S S D each."""
    product = 2 * 2 * 4 * 64 * 64 * 64

    def step() -> None:
        attend(trains=True).sum().backward()

    for chip in ("H100-SXM", "A100-SXM"):
        ledger = accounted(step, chip)
        assert ledger.total.flops_matmul == (2 + 5) * product


def held_by(chip: str, dtype: torch.dtype, length: int = 2048) -> int:
    """Peak bytes of one attention forward and backward, its inputs and gradients included."""
    with torchtally.virtual_gpu(chip) as gpu:
        attend(dtype=dtype, batch=1, heads=8, queries=length, trains=True).sum().backward()
        return gpu.peak_allocated_bytes


@pytest.mark.parametrize(
    ("chip", "dtype"), [("H100-SXM", BF16), ("A100-SXM", BF16), ("A100-SXM", FP32), ("T4", FP16)]
)
def test_no_square_of_the_length_is_held(chip: str, dtype: torch.dtype):
    """8 heads of 2048 x 2048 scores would be 64 MiB; a tensor of 8 x 2048 x 64 is 2 or 4 MiB."""
    one = 8 * 2048 * 64 * dtype.itemsize  # q, k, v, the output and three gradients: 7 of them
    scores = 8 * 2048 * 2048 * dtype.itemsize
    assert 7 * one <= held_by(chip, dtype) < scores
    # Twice the length is twice the bytes, not four times.
    assert held_by(chip, dtype, 4096) < 2.1 * held_by(chip, dtype)


def test_the_math_backend_holds_the_squares():
    with torchtally.virtual_gpu("A100-SXM") as gpu, sdpa_kernel(SDPBackend.MATH):
        attend(batch=1, heads=8, queries=2048, trains=True).sum().backward()
        assert gpu.peak_allocated_bytes > 2 * 8 * 2048 * 2048 * 2


def test_the_math_backend_counts_its_causal_mask():
    def call() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            attend(dtype=FP32, is_causal=True)

    trace = traced(call)
    masks = [op for op in ops(trace) if any(s.dtype == "bool" for s in op.call.outputs)]
    assert masks  # a matrix of 64 x 64 is made on the device, and seen
    assert len(ops(trace, "aten.bmm")) == 2


def test_what_is_saved_for_backward_by_hand():
    """Flash: q, k, v, the output, and a float32 per query; no scores."""

    def step() -> None:
        q, k, v = (
            torch.zeros(1, 8, 1024, 64, dtype=BF16, device="cuda", requires_grad=True)
            for _ in range(3)
        )
        out = F.scaled_dot_product_attention(q * 2, k * 2, v * 2)
        out.sum().backward()

    ledger = accounted(step, "A100-SXM")
    mib = 1024**2
    saved_bytes = {
        op.call.name: op.bytes_saved
        for op in ledger.entries
        if op.op.phase is Phase.FORWARD and op.bytes_saved >= mib
    }
    assert saved_bytes["aten.mul"] == mib
    flash = saved_bytes["aten._scaled_dot_product_flash_attention"]
    assert mib + 8 * 1024 * 4 <= flash < mib + 8 * 1024 * 4 + 2048


def test_inference_mode_takes_the_same_kernels():
    def call() -> None:
        with torch.inference_mode():
            attend()

    assert backend_of("H100-SXM", call) == CUDNN
    assert backend_of("A100-SXM", call) == FLASH


def test_an_encoder_layer_reaches_the_kernel():
    def call() -> None:
        layer = torch.nn.TransformerEncoderLayer(
            64, 4, 128, batch_first=True, device="cuda", dtype=BF16
        )
        layer(torch.zeros(2, 16, 64, device="cuda", dtype=BF16))
        layer.eval()
        with torch.no_grad():
            layer(torch.zeros(2, 16, 64, device="cuda", dtype=BF16))

    trace = traced(call, "A100-SXM")
    assert names(trace).count("aten._scaled_dot_product_flash_attention") == 2


@pytest.mark.parametrize(("trains_mask", "expected"), [(False, CUDNN), (True, EFFICIENT)])
def test_a_mask_that_is_trained_keeps_cudnn_away(trains_mask: bool, expected: str):
    """A learned bias, as T5's of relative positions; PyTorch 2.11 and 2.13 choose so."""

    def script() -> None:
        x = torch.randn(2, 4, 64, 64, device="cuda", dtype=BF16)
        bias = torch.zeros(2, 4, 64, 64, device="cuda", dtype=BF16, requires_grad=trains_mask)
        F.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    assert backend_of("H100-SXM", script) == expected
