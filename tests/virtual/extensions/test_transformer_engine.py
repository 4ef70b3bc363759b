"""Transformer Engine where it is not installed: products, recipes, attention, whole layers."""

from collections import Counter

import pytest
import torch
from torch import Tensor

import torchtally
from torchtally.ledger import Ledger
from torchtally.work.convention import Convention

BF16 = torch.bfloat16
TRANSFORMER_ENGINE = "transformer_engine"


def traced(step, gpu: str = "H100-SXM") -> Ledger:
    trace = torchtally.run(step, gpu=gpu)
    ledger = torchtally.account(trace, step="all", roofline=torchtally.roofline(gpu))
    ledger.check()
    assert not ledger.coverage.uncounted
    assert not ledger.untimed
    return ledger


def flops(ledger: Ledger, name: str) -> list[int]:
    name = f"{TRANSFORMER_ENGINE}.{name}"
    return [entry.cost.flops for entry in ledger.entries if entry.call.name == name]


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda", dtype=BF16, requires_grad=True)


def blocks(*sizes: int) -> int:
    """Bytes of tensors in the allocator's blocks of 512."""
    return sum(-(-size // 512) * 512 for size in sizes)


def kept_by(run, *, result_bytes: int) -> int:
    """Bytes allocated after a call, without its result; of one that has run before."""
    run()
    before = torch.cuda.memory_allocated()
    out = run()  # noqa: F841 (holds the graph)
    return torch.cuda.memory_allocated() - before - result_bytes


# Products -----------------------------------------------------------------------------------------


def test_linear_multiplies_in_float8_within_autocast_alone():
    """(64, 32) times 32 x 16, forward, and for the gradients of input and weight."""

    def step() -> None:
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import DelayedScaling, Format

        layer = te.Linear(32, 16, bias=True, params_dtype=BF16)
        x = half(64, 32)
        with te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(fp8_format=Format.HYBRID)):
            out = layer(x)
        out.sum().backward()
        assert x.grad is not None
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        te.Linear(32, 16, params_dtype=BF16)(x)

    ledger = traced(step)
    products = [e for e in ledger.entries if e.call.name == "transformer_engine.gemm"]
    assert [entry.cost.flops for entry in products] == [2 * 64 * 32 * 16] * 4
    dtypes = [[spec.dtype for spec in entry.call.inputs[:2]] for entry in products]
    assert dtypes[0] == ["float8_e4m3fn", "float8_e4m3fn"]
    assert dtypes[1] == ["float8_e5m2", "float8_e4m3fn"]
    assert dtypes[3][0] == "bfloat16"
    assert flops(ledger, "quantize") == [3 * 64 * 32, 3 * 32 * 16, 3 * 64 * 16]


def test_under_torchs_autocast_weights_are_cast(gpu):
    import transformer_engine.pytorch as te

    layer = te.Linear(512, 512, bias=False)
    x = half(1024, 512)
    with torch.autocast("cuda", BF16):
        kept = kept_by(lambda: layer(x), result_bytes=1024 * 512 * 2)
        layer(x).sum().backward()
    assert kept == 512 * 512 * 2
    assert layer.weight.grad.dtype == torch.float32


M, K, N = 1024, 512, 256
WEIGHT = N * K
KEPT = {
    # A byte of each element of the input, transposed, and two of the weight; a scale of each.
    ("DelayedScaling", "H100-SXM"): M * K + 2 * WEIGHT + 2 * 512,
    ("Float8CurrentScaling", "H100-SXM"): M * K + 2 * WEIGHT + 2 * 512,
    # Blackwell multiplies float8 of any layout: one copy of each.
    ("DelayedScaling", "B200"): M * K + WEIGHT + 2 * 512,
    # Scales in float32, of 1 x 128: (8, 512) over columns of the input; of 128 x 128: (2, 4) over
    # rows and (4, 4) over columns of the weight, in blocks of 512 bytes.
    ("Float8BlockScaling", "H100-SXM"): M * K + 4 * 8 * 512 + 2 * WEIGHT + 2 * 512,
    # A byte for each 32: (32, 512) over columns of the input, (256, 16) and (8, 512) of the weight.
    ("MXFP8BlockScaling", "B200"): M * K + 32 * 512 + 2 * WEIGHT + 256 * 16 + 8 * 512,
    # Half a byte, and one for each 16: (512, 64), and (256, 32) and (512, 16).
    ("NVFP4BlockScaling", "B200"): (M * K // 2 + 512 * 64 + 2 * WEIGHT // 2 + 256 * 32 + 512 * 16),
}


@pytest.mark.parametrize(("recipe", "chip"), KEPT)
def test_what_a_layer_keeps_by_recipe(recipe, chip):
    with torchtally.virtual_gpu(chip):
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe as recipes

        layer, x = te.Linear(K, N, bias=False, params_dtype=BF16), half(M, K)
        with te.autocast(recipe=getattr(recipes, recipe)()):
            kept = kept_by(lambda: layer(x), result_bytes=M * N * 2)
        layer(x).sum().backward()
    assert kept == KEPT[recipe, chip]


ROWS = (64, 0, 192)
"""Of three experts, one of which gets no token."""


def test_groups_are_multiplied_by_weights_of_their_own():
    """Forward and for the gradients of the input into one tensor each; each weight's by itself."""

    def step() -> None:
        import transformer_engine.pytorch as te

        layer = te.GroupedLinear(len(ROWS), K, N, params_dtype=BF16)
        x = half(sum(ROWS), K)
        out = layer(x, ROWS)
        assert out.shape == (sum(ROWS), N)
        out.sum().backward()
        assert x.grad is not None
        assert [layer.weight1.grad.shape, layer.bias2.grad.shape] == [(N, K), (N,)]

    ledger = traced(step)
    of_groups = [2 * rows * N * K for rows in ROWS if rows]
    assert flops(ledger, "gemm_into") == of_groups * 2
    assert flops(ledger, "gemm") == [2 * rows * N * K for rows in ROWS]
    bytes_read = [e.cost.bytes_read for e in ledger.entries if e.call.name.endswith("gemm_into")]
    # Rows and the weight of each, and forward its bias.
    assert bytes_read[:2] == [2 * (rows * K + N * K + N) for rows in ROWS if rows]
    assert bytes_read[2:] == [2 * (rows * N + N * K) for rows in ROWS if rows]


@pytest.mark.parametrize(
    ("recipe", "kept_bytes"),
    [
        (None, 0),  # the input and the weights themselves
        # As one layer keeps of each group: a byte of its rows and two of its weight, and scales.
        ("DelayedScaling", sum(rows * K + 2 * WEIGHT + 2 * 512 for rows in (128, 896))),
        ("MXFP8BlockScaling", sum(blocks(
            rows * K, rows // 32 * 512, 2 * WEIGHT, 256 * 16, 8 * 512
        ) for rows in (128, 896))),
    ],
)  # fmt: skip
def test_what_groups_keep(recipe, kept_bytes):
    with torchtally.virtual_gpu("B200" if recipe == "MXFP8BlockScaling" else "H100-SXM"):
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe as recipes

        layer, x = te.GroupedLinear(2, K, N, bias=False, params_dtype=BF16), half(M, K)
        how = recipe and getattr(recipes, recipe)()
        with te.autocast(enabled=recipe is not None, recipe=how):
            kept = kept_by(lambda: layer(x, (128, 896)), result_bytes=M * N * 2)
        layer(x, (128, 896)).sum().backward()
    assert kept == kept_bytes


QUANTIZED = {
    # Of the magnitude, the largest, and the product with the scale: for each scale of an element.
    "Float8BlockScaling": [2 * 3 * M * K, 2 * 3 * WEIGHT, 2 * 3 * M * N],
    "MXFP8BlockScaling": [2 * 3 * M * K, 2 * 3 * WEIGHT, 2 * 3 * M * N],
    # And the largest of all, and the turn by 16 x 16 of what is read over columns.
    "NVFP4BlockScaling": [(6 + 2 + 32) * n for n in (M * K, WEIGHT, M * N)],
    "Float8CurrentScaling": [3 * M * K, 3 * WEIGHT, 3 * M * N],
}


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_flops_and_bytes_of_quantising(recipe):
    def step() -> None:
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe as recipes

        layer, x = te.Linear(K, N, bias=False, params_dtype=BF16), half(M, K)
        with te.autocast(recipe=getattr(recipes, recipe)()):
            layer(x).sum().backward()

    ledger = traced(step, "B200")
    assert flops(ledger, "quantize") == QUANTIZED[recipe]
    assert flops(ledger, "gemm") == [2 * M * N * K] * 3
    first = next(e for e in ledger.entries if e.call.name == "transformer_engine.quantize")
    times_read = 2 if recipe in ("Float8CurrentScaling", "NVFP4BlockScaling") else 1
    assert first.cost.bytes_read == times_read * M * K * 2


def test_recipes_that_a_chip_does_not_have():
    with torchtally.virtual_gpu("H100-SXM"):
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import DelayedScaling, MXFP8BlockScaling

        assert te.is_fp8_available()
        assert te.is_mxfp8_available(return_reason=True)[1].startswith("Device compute capability")
        with pytest.raises(RuntimeError, match="or higher required for MXFP8"):
            te.autocast(recipe=MXFP8BlockScaling()).__enter__()
        with pytest.raises(NotImplementedError, match="fp8_mha without fp8_dpa"):
            te.autocast(recipe=DelayedScaling(fp8_mha=True)).__enter__()
        with te.autocast(), pytest.raises(AssertionError, match="divisible by 16"):
            te.Linear(24, 16, params_dtype=BF16)(half(8, 24))


def test_weights_are_quantised_once_for_the_micro_batches_of_a_step():
    def step() -> None:
        import transformer_engine.pytorch as te

        layer, x = te.Linear(K, N, bias=False, params_dtype=BF16), half(M, K)
        with te.fp8_autocast():
            for number in range(3):
                layer(x, is_first_microbatch=number == 0).sum().backward()

    counts = Counter(flops(traced(step), "quantize"))
    assert counts == {3 * M * K: 3, 3 * M * N: 3, 3 * WEIGHT: 1}


# What stands before and between products ----------------------------------------------------------


def test_a_norm_with_a_product_keeps_its_input_and_what_is_multiplied(gpu):
    """The input comes in. float32 means and deviations of the rows; the transpose in float8."""
    import transformer_engine.pytorch as te

    layer, x = te.LayerNormLinear(K, N, params_dtype=BF16), half(M, K)
    assert sorted(dict(layer.named_parameters())) == [
        "bias", "layer_norm_bias", "layer_norm_weight", "weight"
    ]  # fmt: skip
    with te.fp8_autocast():
        kept = kept_by(lambda: layer(x), result_bytes=M * N * 2)
    assert kept == 2 * M * 4 + M * K + 2 * WEIGHT + 2 * 512


F = 1024


@pytest.mark.parametrize("float8", [False, True])
def test_a_gated_network_keeps_the_input_of_its_activation(gpu, float8):
    """Not the function of the gate: (M, 2F) before, and (M, F) behind, in float8 twice."""
    import transformer_engine.pytorch as te

    layer = te.LayerNormMLP(
        K, F, bias=False, normalization="RMSNorm", activation="swiglu", params_dtype=BF16
    )
    x = half(M, K)
    with te.fp8_autocast(enabled=float8):
        kept = kept_by(lambda: layer(x), result_bytes=M * K * 2)
    hidden = M * 2 * F * 2
    if float8:
        weights = 2 * (2 * F * K + K * F)
        assert kept == 4 * M + 2 * M * K + hidden + 2 * M * F + weights + 4 * 512
    else:
        assert kept == 4 * M + 2 * M * K + hidden + 2 * M * F


def test_flops_of_a_feed_forward_network():
    def step() -> None:
        import transformer_engine.pytorch as te

        layer = te.LayerNormMLP(K, F, bias=False, activation="swiglu", params_dtype=BF16)
        layer(half(M, K)).sum().backward()

    ledger = traced(step)
    first, second = 2 * M * K * 2 * F, 2 * M * F * K
    assert flops(ledger, "gemm") == [first, second, second, second, first, first]
    assert flops(ledger, "activation") == [2 * M * F]
    assert flops(ledger, "activation_backward") == [5 * M * F]


# Attention ----------------------------------------------------------------------------------------

S, B, H, D = 256, 2, 4, 64
PAIRS = B * H * S * S


def test_attention_by_cudnn_keeps_its_operands_and_a_row_of_sums(gpu):
    import transformer_engine.pytorch as te

    attention = te.DotProductAttention(H, D)
    query, key, value = (half(S, B, H, D) for _ in range(3))
    out = attention(query, key, value)
    assert out.shape == (S, B, H * D)
    assert out.is_contiguous()
    kept = kept_by(lambda: attention(query, key, value), result_bytes=S * B * H * D * 2)
    assert kept == B * H * S * 4 + 512
    out.sum().backward()
    assert query.grad.stride() == query.stride()


@pytest.mark.parametrize("form", ["sbhd", "bshd"])
def test_flops_of_attention(form):
    def step() -> None:
        import transformer_engine.pytorch as te

        shape = (S, B, H, D) if form == "sbhd" else (B, S, H, D)
        attention = te.DotProductAttention(H, D, qkv_format=form)
        query = half(*shape)
        attention(query, half(*shape), half(*shape)).sum().backward()
        te.DotProductAttention(H, D, num_gqa_groups=2, qkv_format=form, attn_mask_type="no_mask")(
            query, half(*shape[:2], 2, D), half(*shape[:2], 2, D)
        )

    ledger = traced(step)
    assert flops(ledger, "cudnn_attention") == [4 * PAIRS * D] * 2
    assert flops(ledger, "cudnn_attention_backward") == [10 * PAIRS * D]
    halved = torchtally.account(ledger.course.trace, convention=Convention.CAUSAL, step="all")
    assert flops(halved, "cudnn_attention") == [2 * PAIRS * D, 4 * PAIRS * D]


NUMBERS = S * B * H * D
"""Numbers of queries, of keys and of values."""
ROWS_AND_STATE = B * H * S * 4 + 512


def float8_attention(name: str):
    """(DotProductAttention, autocast) with `fp8_dpa` of a recipe."""
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    return te.DotProductAttention(H, D), lambda: te.autocast(
        recipe=getattr(recipe, name)(fp8_dpa=True)
    )


@pytest.mark.parametrize(
    ("recipe", "chip", "kept_bytes"),
    [
        # Operands and the result in float8, with a scale for the former and one for the latter.
        ("DelayedScaling", "H100-SXM", 3 * NUMBERS + NUMBERS + 2 * 512),
        # The result in half precision, which is the answer.
        ("Float8CurrentScaling", "B200", 3 * NUMBERS + 512),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_attention_in_float8_keeps_a_byte_for_each_number(recipe, chip, kept_bytes, is_packed):
    with torchtally.virtual_gpu(chip):
        attention, autocast = float8_attention(recipe)
        packed = half(S, B, 3, H, D)
        parts = [half(S, B, H, D) for _ in range(3)]

        def run() -> Tensor:
            with autocast():
                if is_packed:
                    return attention(qkv_layer=packed, qkv_interleave_dim=2)
                return attention(*parts)

        out = run()
        assert out.shape == (S, B, H * D)
        assert out.dtype is BF16
        assert kept_by(run, result_bytes=2 * NUMBERS) == kept_bytes + ROWS_AND_STATE
        out.sum().backward()
        for x in [packed] if is_packed else parts:
            assert x.grad.dtype is BF16
            assert x.grad.shape == x.shape


def test_a_backward_pass_in_half_precision_keeps_what_it_was_given(monkeypatch):
    monkeypatch.setenv("NVTE_FP8_DPA_BWD", "0")
    with torchtally.virtual_gpu("H100-SXM"):
        attention, autocast = float8_attention("DelayedScaling")
        parts = [half(S, B, H, D) for _ in range(3)]

        def run() -> Tensor:
            with autocast():
                return attention(*parts)

        assert kept_by(run, result_bytes=2 * NUMBERS) == ROWS_AND_STATE
        run().sum().backward()


@pytest.mark.parametrize(
    ("recipe", "chip", "is_delayed"),
    [("DelayedScaling", "H100-SXM", True), ("Float8CurrentScaling", "B200", False)],
)
def test_what_attention_in_float8_runs(recipe, chip, is_delayed):
    """Operands are copied into one tensor and quantised; so is the gradient. By steps before, the
    result and the operands' gradients are converted back.
    """

    def step() -> None:
        attention, autocast = float8_attention(recipe)
        with autocast():
            out = attention(*(half(S, B, H, D) for _ in range(3)))
        out.sum().backward()

    ledger = traced(step, chip)
    assert flops(ledger, "cudnn_attention") == [4 * PAIRS * D]
    assert flops(ledger, "cudnn_attention_backward") == [10 * PAIRS * D]
    assert flops(ledger, "quantize") == [3 * 3 * NUMBERS, 3 * NUMBERS]
    assert flops(ledger, "dequantize") == ([NUMBERS, 3 * NUMBERS] if is_delayed else [])
    calls = {entry.call.plain_name: entry.call for entry in ledger.entries}
    forward, backward = calls["cudnn_attention"], calls["cudnn_attention_backward"]
    assert forward.tensor("query").dtype == "float8_e4m3fn"
    assert backward.tensor("grad_out").dtype == "float8_e5m2"
    assert forward.outputs[0].dtype == ("float8_e4m3fn" if is_delayed else "bfloat16")
    assert backward.tensor("grad_query").dtype == ("float8_e5m2" if is_delayed else "bfloat16")
    copies = [entry.cost.bytes_written for entry in ledger.entries if entry.call.name == "aten.cat"]
    assert copies == ([3 * NUMBERS * 2, 3 * NUMBERS] if is_delayed else [3 * NUMBERS * 2])


def test_attention_in_float8_multiplies_at_float8s_rate():
    """Of long sequences, at less than twice it: exponentials are not faster."""

    def seconds(recipe_options: dict) -> float:
        def step() -> None:
            import transformer_engine.pytorch as te
            from transformer_engine.common.recipe import DelayedScaling

            with te.autocast(recipe=DelayedScaling(**recipe_options)):
                te.DotProductAttention(16, 128)(*(half(8192, 2, 16, 128) for _ in range(3)))

        ledger = traced(step)
        return sum(
            ledger.slot(entry).kernel_s
            for entry in ledger.entries
            if entry.call.name == "transformer_engine.cudnn_attention"
        )

    assert 1.2 < seconds({}) / seconds({"fp8_dpa": True}) < 2


WIDTH = H * D


def float8_layer(chip: str, name: str, **options: bool) -> tuple[Ledger, list[int]]:
    """(a step of a layer of attention with rotary embeddings, bytes that its graph keeps)."""
    kept: list[int] = []

    def step() -> None:
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe

        layer = te.MultiheadAttention(
            WIDTH, H, D, attention_dropout=0.0, bias=False, params_dtype=BF16
        )
        x = half(S, B, WIDTH)
        angles = te.RotaryPositionEmbedding(D)(S)

        def run() -> Tensor:
            with te.autocast(recipe=getattr(recipe, name)(fp8_dpa=True, **options)):
                return layer(x, rotary_pos_emb=angles, is_first_microbatch=not kept)

        kept.append(0)
        kept.append(kept_by(run, result_bytes=2 * NUMBERS))
        run().sum().backward()
        assert x.grad.dtype is BF16

    return traced(step, chip), kept[1:]


@pytest.mark.parametrize("options", [{}, {"fp8_mha": True}])
def test_between_attention_and_the_product_behind_it_nothing_is_converted(options):
    """By steps before: queries, keys and values are quantised, and the products' own operands but
    the last one's; converted back are the gradients alone. Hopper transposes the result for the
    weight's gradient.
    """
    ledger, _ = float8_layer("H100-SXM", "DelayedScaling", **options)
    runs = 3  # one before, one that is measured, one with its backward pass
    quantized = Counter(flops(ledger, "quantize"))
    weights = 3 * WIDTH * WIDTH
    assert quantized == {3 * NUMBERS: runs + 1, 9 * NUMBERS: runs + 1, weights: 1, 3 * weights: 1}
    assert len(flops(ledger, "dequantize")) == 1
    copies = [entry.cost for entry in ledger.entries if entry.call.name == "aten.clone"]
    turned = [cost for cost in copies if cost.bytes_read == cost.bytes_written == NUMBERS]
    assert len(turned) == 1
    ledger, _ = float8_layer("B200", "DelayedScaling", **options)
    copies = [entry.cost for entry in ledger.entries if entry.call.name == "aten.clone"]
    assert not [cost for cost in copies if cost.bytes_read == cost.bytes_written == NUMBERS]


@pytest.mark.parametrize("chip", ["H100-SXM", "B200"])
def test_what_attention_hands_on_in_float8_is_kept_once(chip):
    """The input, queries, keys and values, and the result, each with its scale."""
    _, kept = float8_layer(chip, "DelayedScaling")
    assert kept == [NUMBERS + 3 * NUMBERS + NUMBERS + 3 * 512 + ROWS_AND_STATE]


def test_what_autograd_sees_between_them_has_no_memory(gpu):
    from transformer_engine.pytorch.quantization import stand_in

    seen = stand_in(torch.empty(S * B, WIDTH, device="cuda", dtype=torch.float8_e4m3fn), BF16)
    assert (seen.shape, seen.dtype) == ((S * B, WIDTH), BF16)
    assert seen.untyped_storage().nbytes() == BF16.itemsize


def test_queries_that_are_products_float8_results_are_not_known():
    with torchtally.virtual_gpu("H100-SXM"):
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import DelayedScaling

        layer = te.MultiheadAttention(WIDTH, H, D, attention_dropout=0.0, params_dtype=BF16)
        not_known = pytest.raises(NotImplementedError, match="without rotary embeddings")
        with te.autocast(recipe=DelayedScaling(fp8_dpa=True, fp8_mha=True)), not_known:
            layer(half(S, B, WIDTH))


def test_where_nothing_attends_in_float8():
    with torchtally.virtual_gpu("H100-SXM"):
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

        parts = [half(S, B, H, D) for _ in range(3)]
        current, delayed = Float8CurrentScaling(fp8_dpa=True), DelayedScaling(fp8_dpa=True)
        no_backend = pytest.raises(ValueError, match="No dot product attention backend")
        with te.autocast(recipe=current), no_backend:
            te.DotProductAttention(H, D)(*parts)
        not_known = pytest.raises(NotImplementedError, match="fp8_dpa of Transformer Engine")
        with te.autocast(recipe=delayed), not_known:
            te.DotProductAttention(H, D, attention_dropout=0.1)(*parts)


def test_packed_sequences_attend_within_themselves():
    def step() -> None:
        import transformer_engine.pytorch as te

        offsets = torch.tensor([0, 128, 512], dtype=torch.int32, device="cuda")
        query = half(512, H, D)
        out = te.DotProductAttention(H, D, qkv_format="thd", attn_mask_type="padding_causal")(
            query, query, query, cu_seqlens_q=offsets, cu_seqlens_kv=offsets, max_seqlen_q=384,
            max_seqlen_kv=384,
        )  # fmt: skip
        assert out.shape == (512, H * D)
        out.sum().backward()

    ledger = traced(step)
    assert flops(ledger, "cudnn_attention") == [4 * H * (128**2 + 384**2) * D]


def test_what_cudnn_does_not_take_is_written_out():
    """float32, and Turing: scores in memory."""

    def step() -> None:
        import transformer_engine.pytorch as te

        single = half(S, B, H, D).float()
        te.DotProductAttention(H, D)(single, single, single)

    for chip in ("H100-SXM", "T4"):
        ledger = traced(step, chip)
        assert not flops(ledger, "cudnn_attention")
        products = [e.cost.flops for e in ledger.entries if e.kind.is_matmul]
        assert products == [2 * PAIRS * D] * 2


def test_flash_attention_is_taken_before_hopper_where_it_is_imported():
    def step() -> None:
        import flash_attn  # noqa: F401
        import transformer_engine.pytorch as te

        query = half(B, S, H, D)
        te.DotProductAttention(H, D, qkv_format="bshd")(query, query, query)

    names = Counter(entry.call.name for entry in traced(step, "A100-SXM-80GB").entries)
    assert names["flash_attn.forward"] == 1
    names = Counter(entry.call.name for entry in traced(step, "H100-SXM").entries)
    assert names["transformer_engine.cudnn_attention"] == 1


def test_attention_with_projections_has_one_gradient_of_them_all():
    """Queries, keys and values lie in one tensor, and so do their gradients: no copy."""

    def step() -> None:
        import transformer_engine.pytorch as te

        layer = te.MultiheadAttention(H * D, H, attention_dropout=0.0, params_dtype=BF16)
        x = half(S, B, H * D)
        layer(x).backward(x)
        assert layer.qkv.query_weight.grad is not None

    ledger = traced(step)
    width = H * D
    qkv, out = 2 * S * B * width * 3 * width, 2 * S * B * width * width
    assert flops(ledger, "gemm") == [qkv, out, out, out, qkv, qkv]
    assert flops(ledger, "cudnn_attention_backward") == [10 * PAIRS * D]
    copies = {"cat", "clone", "copy_", "contiguous"}
    assert not copies & {e.call.plain_name for e in ledger.entries if e.cost.bytes}


# Layers -------------------------------------------------------------------------------------------


def layer_of(**options: object) -> object:
    import transformer_engine.pytorch as te

    return te.TransformerLayer(
        H * D, F, H, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=BF16, **options
    )


def test_a_layers_products_and_parameters():
    width, tokens = H * D, S * B

    def step() -> None:
        import transformer_engine.pytorch as te

        layer = layer_of(bias=False, activation="swiglu", normalization="RMSNorm", num_gqa_groups=2)
        angles = te.RotaryPositionEmbedding(D)(S)
        layer(half(S, B, width), rotary_pos_emb=angles).sum().backward()
        count = sum(parameter.numel() for parameter in layer.parameters())
        assert count == width * (2 * width + width) + width * 3 * F + 2 * width

    ledger = traced(step)
    forward = 2 * tokens * (width * 3 * width + width * 3 * F)
    assert sum(flops(ledger, "gemm")) == 3 * forward
    assert sum(flops(ledger, "cudnn_attention")) == 4 * PAIRS * D
    of_queries, of_keys = 3 * tokens * width + S * D, 3 * tokens * 2 * D + S * D
    assert sorted(flops(ledger, "rotary")) == sorted([of_queries, of_keys] * 2)


def test_what_a_layer_keeps(gpu):
    """bf16, no dropout, biases: two norms with their inputs' statistics, five products, attention.

    Kept are the normed input, queries with keys and values, the result of attention with its
    rows' sums, what the first sum gave, its norm, and the hidden units before and behind GELU.
    """
    width, tokens = H * D, S * B
    layer, x = layer_of(), half(S, B, H * D)
    kept = kept_by(lambda: layer(x), result_bytes=tokens * width * 2)
    statistics, sums = 2 * tokens * 4, B * H * S * 4 + 512
    units = width + 3 * width + width + width + width + 2 * F
    assert kept == 2 * 2 * statistics // 2 + sums + tokens * units * 2


def test_dropout_keeps_a_byte_for_each_element(gpu):
    layer, x = layer_of(), half(S, B, H * D)
    result = S * B * H * D * 2
    without = kept_by(lambda: layer(x), result_bytes=result)
    layer.hidden_dropout = 0.1
    assert kept_by(lambda: layer(x), result_bytes=result) - without == 2 * S * B * H * D


@pytest.mark.parametrize("options", [{"layer_type": "decoder"}, {"parallel_attention_mlp": True}])
def test_other_layers(options):
    def step() -> None:
        layer, x = layer_of(**options), half(S, B, H * D)
        memory = {"encoder_output": x} if "layer_type" in options else {}
        layer(x, **memory).sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())

    attended = 2 if "layer_type" in options else 1
    assert flops(traced(step), "cudnn_attention") == [4 * PAIRS * D] * attended


def test_what_is_not_known_is_named(gpu):
    import transformer_engine.pytorch as te

    with pytest.raises(NotImplementedError, match="delay_wgrad_compute=True of Transformer"):
        te.Linear(32, 32, delay_wgrad_compute=True)
    with pytest.raises(NotImplementedError, match="fuse_wgrad_accumulation of Transformer"):
        te.Linear(32, 32, fuse_wgrad_accumulation=True, parameters_split=("query", "key"))
    with pytest.raises(ValueError, match="doesn't support bias when TP > 1"):
        te.GroupedLinear(2, 32, 32, tp_size=2)
    with pytest.raises(NotImplementedError, match='"row" of Transformer Engine'):
        te.LayerNormLinear(32, 32, tp_size=2, parallel_mode="row")
    with pytest.raises(NotImplementedError, match="inference_params"):
        te.DotProductAttention(H, D)(half(S, B, H, D), inference_params=object())
    with pytest.raises(ImportError, match="cpu_offload"):
        from transformer_engine.pytorch import cpu_offload  # noqa: F401
    with pytest.raises(NotImplementedError, match=r"transformer_engine\.pytorch\.ops"):
        te.ops.Sequential()
