"""What trainers such as Megatron-Core take of Transformer Engine beside its layers."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtally
from torchtally.ledger import Ledger

BF16 = torch.bfloat16
T, E, K, WIDE = 64, 8, 2, 256
"""Tokens, experts, how many of them for a token, numbers of a token."""


def traced(step: Callable[[], Any], gpu: str = "H100-SXM") -> Ledger:
    trace = torchtally.run(step, gpu=gpu)
    ledger = torchtally.account(trace, step="all", roofline=torchtally.roofline(gpu))
    ledger.check()
    assert not ledger.coverage.uncounted
    assert not ledger.untimed
    return ledger


def costs(ledger: Ledger, name: str) -> list[tuple[int, int, int]]:
    """(FLOPs, bytes read, bytes written) of each call."""
    return [
        (entry.cost.flops, entry.cost.bytes_read, entry.cost.bytes_written)
        for entry in ledger.entries
        if entry.call.name.partition(".")[2] == name
    ]


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda", dtype=BF16, requires_grad=True)


def with_main_grad(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)  # type: ignore[attr-defined]
        parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_weights_gradient_is_made_in_main_grad(is_first):
    """(64, 256) @ (256, 128): a gradient of 128 x 256 in float32, read where it is added to, with
    64 gradients of outputs and inputs in bfloat16.
    """

    def step() -> None:
        import transformer_engine.pytorch as te

        layer = te.Linear(WIDE, 128, bias=False, params_dtype=BF16, fuse_wgrad_accumulation=True)
        with_main_grad(layer)
        layer(half(T, WIDE), is_first_microbatch=is_first).sum().backward()
        assert layer.weight.grad_added_to_main_grad
        assert layer.weight.grad.dtype is BF16

    ledger = traced(step)
    made, operands = 4 * 128 * WIDE, 2 * T * (128 + WIDE)
    read = operands + (0 if is_first else made)
    assert costs(ledger, "gemm_into") == [(2 * T * 128 * WIDE, read, made)]


def test_gradients_of_groups_are_made_in_main_grad_and_autograd_gets_one_dummy():
    def step() -> None:
        import transformer_engine.pytorch as te

        layer = te.GroupedLinear(
            2, WIDE, 128, bias=False, params_dtype=BF16, fuse_wgrad_accumulation=True
        )
        with_main_grad(layer)
        layer(half(T, WIDE), [16, 48]).sum().backward()
        first, second = layer.weight0.grad, layer.weight1.grad
        assert first.data_ptr() == second.data_ptr()

    of_weights = [cost for cost in costs(traced(step), "gemm_into") if cost[2] == 4 * 128 * WIDE]
    assert [flops for flops, _, _ in of_weights] == [2 * rows * 128 * WIDE for rows in (16, 48)]


def test_without_a_trainer_that_asks_there_is_no_gradient_for_autograd(gpu):
    import transformer_engine.pytorch as te

    layer = te.Linear(WIDE, 128, params_dtype=BF16, fuse_wgrad_accumulation=True)
    layer.weight.main_grad = torch.zeros_like(layer.weight, dtype=torch.float32)
    layer(half(T, WIDE)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


def test_the_gradient_that_apex_adds():
    def step() -> None:
        import fused_weight_gradient_mlp_cuda as fused

        fused.wgrad_gemm_accum_fp32(
            half(T, WIDE), half(T, 128), torch.zeros(128, WIDE, device="cuda")
        )

    made = 4 * 128 * WIDE
    read = 2 * T * (128 + WIDE) + made
    assert costs(traced(step), "wgrad_gemm_accum") == [(2 * T * 128 * WIDE, read, made)]


def test_original_inputs_are_quantised_again_for_the_weights_gradient():
    """Kept as they are: 2 bytes for each number instead of one, which other layers keep, too."""

    def step(keeps: bool) -> Callable[[], None]:
        def script() -> None:
            import transformer_engine.pytorch as te
            from transformer_engine.common.recipe import Float8CurrentScaling

            layer = te.Linear(WIDE, 128, params_dtype=BF16, save_original_input=keeps)
            with te.fp8_autocast(fp8_recipe=Float8CurrentScaling()):
                layer(half(T, WIDE)).sum().backward()

        return script

    assert len(costs(traced(step(False)), "quantize")) == 3
    assert len(costs(traced(step(True)), "quantize")) == 4


def test_how_ranks_share_parameters(gpu):
    import transformer_engine.pytorch as te

    column, row = (
        te.Linear(WIDE, WIDE, params_dtype=BF16, tp_size=2, parallel_mode=mode,
                  sequence_parallel=True)
        for mode in ("column", "row")
    )  # fmt: skip
    assert (column.weight.partition_dim, column.bias.partition_dim) == (0, 0)
    assert row.weight.partition_dim == 1
    assert row.bias.sequence_parallel
    assert not hasattr(column.bias, "sequence_parallel")
    normed = te.LayerNormLinear(
        WIDE, WIDE, params_dtype=BF16, tp_size=2, parallel_mode="column", sequence_parallel=True
    )
    assert normed.layer_norm_weight.sequence_parallel
    assert te.RMSNorm(hidden_size=WIDE, sequence_parallel=True).weight.sequence_parallel
    grouped = te.GroupedLinear(2, WIDE, WIDE, bias=False, tp_size=2, parallel_mode="row")
    assert grouped.weight1.shape == (WIDE, WIDE // 2)


# Mixtures -----------------------------------------------------------------------------------------


def test_rows_are_permuted_and_summed_again():
    """Each of 64 tokens is copied for 2 experts; back, the two are summed, or merged by
    probabilities.
    """

    def step() -> None:
        from transformer_engine.pytorch.permutation import moe_permute_with_probs, moe_unpermute

        x, probs = half(T, WIDE), torch.zeros(T, E, device="cuda", requires_grad=True)
        routing_map = torch.zeros(T, E, device="cuda", dtype=torch.bool)
        rows, of_rows, row_id_map = moe_permute_with_probs(x, probs, routing_map, K * T)
        assert rows.shape == (K * T, WIDE)
        assert of_rows.shape == (K * T,)
        assert row_id_map.shape == (T, 2 * E + 1)
        out = moe_unpermute(rows * of_rows[:, None].to(BF16), row_id_map, restore_shape=x.shape)
        merged = moe_unpermute(rows, row_id_map, probs)
        (out * 2 + merged * 3).sum().backward()
        assert x.grad.shape == x.shape
        assert probs.grad.shape == probs.shape

    ledger = traced(step)
    tokens, rows, map_bytes, probs = 2 * T * WIDE, 2 * K * T * WIDE, 4 * T * (2 * E + 1), 4 * T * E
    forward, backward = costs(ledger, "permute")
    assert forward == (0, tokens + map_bytes + probs, rows + 4 * K * T)
    assert backward == (0, tokens + map_bytes, rows)
    summed, merged, back = costs(ledger, "unpermute")
    assert summed == (K * T * WIDE, rows + map_bytes, tokens)
    assert merged == (2 * K * T * WIDE, rows + map_bytes + probs, tokens)
    assert back == (K * T * WIDE, rows + map_bytes + 4 * K * T, tokens + probs)
    assert costs(ledger, "unpermute_backward") == [
        (3 * K * T * WIDE, tokens + rows + map_bytes + probs, rows + probs)
    ]


def test_chunks_are_sorted_and_sorted_back():
    def step() -> None:
        from transformer_engine.pytorch.permutation import moe_sort_chunks_by_index_with_probs

        x, probs = half(T, WIDE), torch.zeros(T, device="cuda", requires_grad=True)
        sizes = torch.full((E,), T // E, device="cuda")
        order = torch.arange(E, device="cuda")
        out, sorted_probs = moe_sort_chunks_by_index_with_probs(x, probs, sizes, order)
        ((out * 2).sum() + (sorted_probs * 2).sum()).backward()
        assert probs.grad.shape == probs.shape

    tokens = 2 * T * WIDE
    moved = (0, tokens + 4 * T + 4 * T, tokens + 4 * T)
    assert costs(traced(step), "sort_chunks") == [moved, moved]


def test_groups_are_padded_to_what_float8_is_multiplied_in():
    def step() -> None:
        import transformer_engine.pytorch as te

        x = half(40, WIDE)
        padding, unpadding = te.Fp8Padding(2), te.Fp8Unpadding(2)
        rows, splits = padding(x, [10, 30])
        assert splits == [16, 32]
        unpadding(rows, [10, 30]).sum().backward()
        assert x.grad.shape == x.shape
        same, _ = te.Fp8Padding(2)(half(48, WIDE), [16, 32])
        assert same.shape == (48, WIDE)

    row = 2 * WIDE
    assert costs(traced(step), "pad_rows") == [
        (0, 40 * row, 48 * row), (0, 48 * row, 40 * row), (0, 40 * row, 48 * row),
        (0, 48 * row, 40 * row),
    ]  # fmt: skip


def test_heads_that_lie_interleaved_are_attended_to_where_they_are():
    """One product's result of 4 heads, for each of them queries, keys and values: no copies."""

    def step(at: int) -> Callable[[], None]:
        def script() -> None:
            import transformer_engine.pytorch as te

            mixed = half(T, 2, 4, 3 * 64) if at == -1 else half(T, 2, 3, 4, 64)
            query, key, value = mixed.chunk(3, at) if at == -1 else mixed.flip(2).unbind(2)
            attention = te.DotProductAttention(4, 64, attn_mask_type="causal")
            (attention(query, key, value) * 2).sum().backward()
            assert mixed.grad.shape == mixed.shape

        return script

    def copies(ledger: Ledger) -> int:
        return len(costs(ledger, "clone"))

    assert copies(traced(step(-1))) == 0
    assert copies(traced(step(2))) == 3


# Losses and optimizers ----------------------------------------------------------------------------


def test_the_loss_leaves_its_gradient_where_the_logits_were():
    """64 tokens of 256 logits: read for their sums, and read and written for the gradient, both
    times; nothing else of their size is kept.
    """

    def step() -> None:
        from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy

        hidden = half(1, T, WIDE)
        logits = hidden * 2
        target = torch.zeros(1, T, device="cuda", dtype=torch.int64)
        loss = parallel_cross_entropy(logits, target, 0.0, False, None)
        assert loss.shape == (1, T)
        (loss * 2).sum().backward()
        assert hidden.grad.shape == hidden.shape

    ledger = traced(step)
    logits, target, kept = 2 * T * WIDE, 8 * T, 4 * 3 * T
    assert costs(ledger, "online_softmax") == [(4 * T * WIDE, logits + target, kept)]
    assert costs(ledger, "cross_entropy_and_gradient") == [
        (3 * T * WIDE + 2 * T, logits + target + kept, logits + 4 * T)
    ]
    assert costs(ledger, "scale_rows_") == [(T * WIDE, logits + 4 * T, logits)]


def test_norms_and_scales_of_many_tensors():
    """1,024 and 32 numbers: two FLOPs each for their norm, one for the scale."""

    def step() -> None:
        from transformer_engine.pytorch.optimizers import (
            FusedAdam,
            multi_tensor_applier,
            multi_tensor_l2norm,
            multi_tensor_scale,
        )

        layer = nn.Linear(32, 32, device="cuda")
        optimizer = FusedAdam(layer.parameters(), lr=0.1, weight_decay=0.1)
        layer(torch.ones(2, 32, device="cuda")).sum().backward()
        grads = [parameter.grad for parameter in layer.parameters()]
        flag = torch.zeros(1, dtype=torch.int, device="cuda")
        norm, _ = multi_tensor_applier(multi_tensor_l2norm, flag, [grads], False)
        assert norm.shape == (1,)
        multi_tensor_applier(multi_tensor_scale, flag, [grads, grads], 0.5)
        optimizer.step()
        with pytest.raises(NotImplementedError, match="master_weights=True"):
            FusedAdam(layer.parameters(), master_weights=True)

    ledger, numbers = traced(step), 32 * 32 + 32
    assert costs(ledger, "multi_tensor_l2norm") == [(2 * numbers, 4 * numbers, 4)]
    assert costs(ledger, "multi_tensor_scale") == [(numbers, 4 * numbers, 4 * numbers)]
    assert costs(ledger, "multi_tensor_adam") == [(15 * numbers, 16 * numbers, 12 * numbers)]


# Recomputation ------------------------------------------------------------------------------------


def test_a_recomputed_layer_is_quantised_again_by_the_same_recipe():
    def step() -> None:
        import transformer_engine.pytorch as te
        from transformer_engine.pytorch.distributed import CudaRNGStatesTracker, checkpoint

        tracker = CudaRNGStatesTracker()
        tracker.add("model-parallel-rng", 1)
        layer = te.Linear(WIDE, 128, params_dtype=BF16, get_rng_state_tracker=lambda: tracker)
        with te.fp8_autocast():
            out = checkpoint(layer, half(T, WIDE), get_rng_state_tracker=lambda: tracker)
        assert not te.fp8.FP8GlobalStateManager.is_fp8_enabled()
        out.sum().backward()

    ledger = traced(step)
    products = [each for each in ledger.entries if each.call.name == "transformer_engine.gemm"]
    assert [each.call.inputs[0].dtype for each in products] == [
        "float8_e4m3fn", "float8_e4m3fn", "float8_e5m2", "float8_e5m2",
    ]  # fmt: skip


def test_what_would_be_guessed_is_refused(gpu):
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling
    from transformer_engine.pytorch.distributed import checkpoint

    recipe = DelayedScaling(override_linear_precision=(False, False, True))
    with (
        pytest.raises(NotImplementedError, match="fp8_wgrad=False"),
        te.fp8_autocast(fp8_recipe=recipe),
    ):
        pass
    with pytest.raises(NotImplementedError, match="float8 from the start"), te.fp8_model_init():
        pass
    with pytest.raises(NotImplementedError, match="moe_router_fusion"):
        te.router.fused_topk_with_score_function(half(T, E), K)
    with pytest.raises(NotImplementedError, match="distribute_saved_activations"):
        checkpoint(te.Linear(32, 32), half(32, 32), distribute_saved_activations=True)


# Megatron -----------------------------------------------------------------------------------------


def test_megatron_gets_the_library_that_it_looks_for(tmp_path, monkeypatch):
    """Installed, and though it looks for a part that the stand-in lacks, in the same `try`."""
    package = tmp_path / "site-packages" / "megatron"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "extension.py").write_text(
        "try:\n"
        "    import transformer_engine as te\n"
        "    HAVE_TE = True\n"
        "except ImportError:\n"
        "    HAVE_TE = False\n"
        "try:\n"
        "    from transformer_engine.pytorch.no_such_part import kernel\n"
        "except ImportError:\n"
        "    kernel = None\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))

    def step() -> None:
        from megatron import extension

        assert extension.HAVE_TE
        assert extension.kernel is None

    torchtally.run(step, gpu="H100-SXM")
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


def test_what_is_taken_once_is_taken_anew_in_the_next_run():
    """By functions that another package still has: Megatron's modules stay imported."""
    imported = []

    def step() -> None:
        if not imported:
            from transformer_engine.pytorch.module.base import get_dummy_wgrad, get_workspace

            imported.extend((get_dummy_wgrad, get_workspace))
        get_dummy_gradient, take_workspace = imported
        for _ in range(2):
            get_dummy_gradient([64, 32], torch.bfloat16)
            take_workspace()

    for _ in range(2):
        trace = torchtally.run(step, gpu="H100-SXM")
        assert sorted(each.requested_bytes for each in trace.storages) == [64 * 32 * 2, 32 << 20]
