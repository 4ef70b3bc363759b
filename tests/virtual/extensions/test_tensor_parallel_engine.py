"""Transformer Engine's products shared among two ranks: what each multiplies, sends and keeps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import torchtally
from torchtally.ledger import Ledger
from torchtally.trace import Ending, World
from torchtally.tracer.session import recording

BF16 = torch.bfloat16
RANKS, ROWS, WIDE, NARROW = 2, 64, 512, 256
GATHER, SCATTER, REDUCE = "_allgather_base_", "_reduce_scatter_base_", "allreduce_"
TOGETHER = "allgather_into_tensor_coalesced_"


def traced(script: Callable[[], Any], gpu: str = "H100-SXM") -> Ledger:
    world = World(size=RANKS, rank=0, gpus_per_node=RANKS)
    with recording(gpu, script="", what_ifs=(), world=world) as recorder:
        dist.init_process_group("nccl")
        script()
    trace = recorder.trace(Ending("exit"))
    ledger = torchtally.account(trace, step="all", roofline=torchtally.roofline(gpu))
    ledger.check()
    assert not ledger.coverage.uncounted
    return ledger


def events(ledger: Ledger) -> list[tuple[str, int]]:
    """In order: ("gemm", FLOPs), or a collective with the bytes of the larger of its tensors."""
    found = []
    for entry in ledger.entries:
        library, _, name = entry.call.name.partition(".")
        if name == "gemm":
            found.append((name, entry.cost.flops))
        elif library == "c10d":
            found.append((name, max(entry.cost.bytes_read, entry.cost.bytes_written)))
    return found


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda", dtype=BF16, requires_grad=True)


def stepped(
    mode: str, *, by_sequence: bool, is_named_later: bool = False, **options: Any
) -> Ledger:
    """512 features to 256, of which a rank has half the one or the other."""

    def script() -> None:
        import transformer_engine.pytorch as te

        group = dist.group.WORLD
        which = {"tp_size": RANKS} if is_named_later else {"tp_group": group}
        layer = te.Linear(
            WIDE, NARROW, params_dtype=BF16, parallel_mode=mode, sequence_parallel=by_sequence,
            **which, **options,
        )  # fmt: skip
        if is_named_later:
            layer.set_tensor_parallel_group(group)
        inputs, outputs = (WIDE, NARROW // 2) if mode == "column" else (WIDE // 2, NARROW)
        assert layer.weight.shape == (outputs, inputs)
        assert layer.bias.shape == (outputs,)
        x = half(ROWS, inputs)
        out = layer(x)
        rows = {(True, "column"): ROWS * 2, (True, "row"): ROWS // 2}.get((by_sequence, mode), ROWS)
        assert out.shape == (rows, outputs)
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert layer.bias.grad.shape == layer.bias.shape

    return traced(script)


FLOPS = 2 * ROWS * WIDE * NARROW // RANKS


def test_gradients_of_a_column_parallel_products_input_are_summed():
    assert events(stepped("column", by_sequence=False)) == [
        ("gemm", FLOPS), ("gemm", FLOPS), (REDUCE, 2 * ROWS * WIDE), ("gemm", FLOPS),
    ]  # fmt: skip


def test_a_row_parallel_product_is_summed_and_its_bias_added_once_after():
    ledger = stepped("row", by_sequence=False)
    product = next(each for each in ledger.entries if each.call.name == "transformer_engine.gemm")
    assert product.cost.bytes_read == 2 * (WIDE // RANKS) * (ROWS + NARROW)
    assert events(ledger) == [
        ("gemm", FLOPS), (REDUCE, 2 * ROWS * NARROW), ("gemm", FLOPS), ("gemm", FLOPS),
    ]  # fmt: skip


def test_tokens_are_gathered_for_a_column_parallel_product_and_again_for_its_weight():
    """A rank has 64 tokens of 128."""
    size = 2 * (2 * ROWS) * WIDE
    assert events(stepped("column", by_sequence=True)) == [
        (GATHER, size), ("gemm", 2 * FLOPS),
        (GATHER, size), ("gemm", 2 * FLOPS), (SCATTER, size), ("gemm", 2 * FLOPS),
    ]  # fmt: skip


def test_a_row_parallel_products_sums_are_scattered_and_their_gradients_gathered():
    size = 2 * ROWS * NARROW
    assert events(stepped("row", by_sequence=True)) == [
        ("gemm", FLOPS), (SCATTER, size), (GATHER, size), ("gemm", FLOPS), ("gemm", FLOPS),
    ]  # fmt: skip


def test_a_group_may_be_named_later():
    told = stepped("column", by_sequence=False, is_named_later=True)
    assert events(told) == events(stepped("column", by_sequence=False))

    def script() -> None:
        import transformer_engine.pytorch as te

        layer = te.Linear(WIDE, NARROW, params_dtype=BF16, parallel_mode="row", tp_size=RANKS)
        with pytest.raises(AssertionError, match="TP group not initialized"):
            layer(half(ROWS, WIDE // 2))

    traced(script)


def test_what_is_kept_of_gathered_tokens_is_the_ranks_own():
    """The gathered copy is freed after the product: what lives is the result, 128 x 128."""
    kept: list[int] = []

    def script() -> None:
        import transformer_engine.pytorch as te

        layer = te.Linear(
            WIDE, NARROW, bias=False, params_dtype=BF16, tp_group=dist.group.WORLD,
            parallel_mode="column", sequence_parallel=True,
        )  # fmt: skip
        x = half(ROWS, WIDE)
        layer(x)
        before = torch.cuda.memory_allocated()
        out = layer(x)  # noqa: F841 (holds the graph)
        kept.append(torch.cuda.memory_allocated() - before)

    traced(script)
    assert kept == [2 * (2 * ROWS) * (NARROW // 2)]


@pytest.mark.parametrize("by_sequence", [False, True])
def test_a_layer_has_its_ranks_heads_and_features(by_sequence):
    """Width 256, 4 heads and 2 groups of keys, feed-forward of 1024, 128 tokens in all."""
    width, hidden, tokens = 256, 1024, 128
    rows = tokens // RANKS if by_sequence else tokens
    shapes: dict[str, tuple[int, ...]] = {}

    def script() -> None:
        import transformer_engine.pytorch as te

        layer = te.TransformerLayer(
            width, hidden, 4, num_gqa_groups=2, params_dtype=BF16, tp_group=dist.group.WORLD,
            set_parallel_mode=True, sequence_parallel=by_sequence,
        )  # fmt: skip
        shapes.update({name: tuple(each.shape) for name, each in layer.named_parameters()})
        x = half(rows, 1, width)
        out = layer(x)
        assert out.shape == x.shape
        out.sum().backward()
        assert x.grad is not None

    ledger = traced(script)
    attention, mlp = "self_attention", "layernorm_mlp"
    assert shapes[f"{attention}.layernorm_qkv.query_weight"] == (width // 2, width)
    assert shapes[f"{attention}.layernorm_qkv.key_weight"] == (width // 4, width)
    assert shapes[f"{attention}.proj.weight"] == (width, width // 2)
    assert shapes[f"{mlp}.fc1_weight"] == (hidden // 2, width)
    assert shapes[f"{mlp}.fc2_weight"] == (width, hidden // 2)
    assert shapes[f"{mlp}.fc2_bias"] == (width,)
    weights = (width * width * 2 + width * width + 2 * width * hidden) // RANKS
    found = events(ledger)
    assert sum(flops for name, flops in found if name == "gemm") == 3 * 2 * tokens * weights
    sent = [each for each in found if each[0] != "gemm"]
    size = 2 * tokens * width
    if by_sequence:
        assert sent == [
            (GATHER, size), (SCATTER, size), (GATHER, size), (SCATTER, size),
            (GATHER, size), (GATHER, size), (SCATTER, size),
            (GATHER, size), (GATHER, size), (SCATTER, size),
        ]  # fmt: skip
    else:
        assert sent == [(REDUCE, size)] * 4
    attended = [
        entry.cost.flops
        for entry in ledger.entries
        if entry.call.name == "transformer_engine.cudnn_attention"
    ]
    assert attended == [4 * (4 // RANKS) * tokens * tokens * 64]


def sequence_parallel(mode: str, recipe: str, gpu: str) -> Ledger:
    """A step of 64 tokens of 128, or of all 128, in float8."""

    def script() -> None:
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe as recipes

        layer = te.Linear(
            WIDE, NARROW, bias=False, params_dtype=BF16, tp_group=dist.group.WORLD,
            parallel_mode=mode, sequence_parallel=True,
        )  # fmt: skip
        x = half(ROWS, WIDE) if mode == "column" else half(2 * ROWS, WIDE // 2)
        with te.autocast(recipe=getattr(recipes, recipe)()):
            out = layer(x)
        assert out.shape == ((2 * ROWS, NARROW // 2) if mode == "column" else (ROWS, NARROW))
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape

    return traced(script, gpu)


@pytest.mark.parametrize(
    ("recipe", "gpu"),
    [
        ("DelayedScaling", "H100-SXM"), ("Float8CurrentScaling", "H100-SXM"),
        ("DelayedScaling", "B200"), ("Float8CurrentScaling", "B200"),
    ],
)  # fmt: skip
def test_float8_of_one_scale_is_gathered_over_rows_and_transposed_on_hopper(recipe, gpu):
    """By its own largest value, that of all ranks is found first: 4 bytes."""
    size, product = 2 * ROWS * WIDE, ("gemm", 2 * FLOPS)
    first = [] if recipe == "DelayedScaling" else [(REDUCE, 4)]
    ledger = sequence_parallel("column", recipe, gpu)
    assert events(ledger) == [
        *first, (GATHER, size), product, (GATHER, size), product, (SCATTER, 2 * size), product,
    ]  # fmt: skip
    transposed = [size] if gpu == "H100-SXM" else []
    assert copied(ledger) == transposed
    size = 2 * ROWS * NARROW
    ledger = sequence_parallel("row", recipe, gpu)
    assert events(ledger) == [
        product, (SCATTER, 2 * size), *first, (GATHER, size), product, product,
    ]  # fmt: skip
    assert copied(ledger) == ([size] if gpu == "H100-SXM" else [])


def copied(ledger: Ledger) -> list[int]:
    """Bytes of float8 that are read to be laid out anew (the gradient of a sum is, too: 2)."""
    entries = [entry for entry in ledger.entries if entry.call.name == "aten.clone"]
    return [entry.cost.bytes_read for entry in entries if entry.cost.bytes_read > 2]


def test_mxfp8_is_gathered_with_its_scales_for_rows_and_for_columns():
    """Of rows a scale for each 32 numbers; gradients are gathered for both, in one group."""
    product = ("gemm", 2 * FLOPS)
    size = 2 * ROWS * WIDE
    each = size + size // 32
    ledger = sequence_parallel("column", "MXFP8BlockScaling", "B200")
    gathers = [each.cost for each in ledger.entries if TOGETHER in each.call.name]
    assert [cost.bytes_read for cost in gathers] == [each // 2, each // 2]
    assert events(ledger) == [
        (TOGETHER, each), product, (TOGETHER, each), product, (SCATTER, 2 * size), product,
    ]  # fmt: skip
    size = 2 * ROWS * NARROW
    found = events(sequence_parallel("row", "MXFP8BlockScaling", "B200"))
    each = 2 * (size + size // 32)
    assert found == [product, (SCATTER, 2 * size), (TOGETHER, each), product, product]


def test_gathered_float8_is_kept_as_the_ranks_own():
    """64 x 512 bytes and a scale; the weight's is of a step's first micro-batch."""
    kept: list[int] = []

    def script() -> None:
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import DelayedScaling

        layer = te.Linear(
            WIDE, NARROW, bias=False, params_dtype=BF16, tp_group=dist.group.WORLD,
            parallel_mode="column", sequence_parallel=True,
        )  # fmt: skip
        x = half(ROWS, WIDE)
        with te.autocast(recipe=DelayedScaling()):
            layer(x, is_first_microbatch=True)
            before = torch.cuda.memory_allocated()
            out = layer(x, is_first_microbatch=False)  # noqa: F841 (holds the graph)
            kept.append(torch.cuda.memory_allocated() - before)

    traced(script)
    assert kept == [2 * (2 * ROWS) * (NARROW // 2) + ROWS * WIDE + 512]


def test_sequence_parallelism_of_blocks_is_not_known():
    match = "sequence_parallel=True of Transformer Engine in Float8BlockScaling"
    with pytest.raises(NotImplementedError, match=match):
        sequence_parallel("column", "Float8BlockScaling", "H100-SXM")


def test_in_float8_sums_are_made_in_the_results_dtype():
    def script() -> None:
        import transformer_engine.pytorch as te

        layer = te.Linear(
            WIDE, NARROW, bias=False, params_dtype=BF16, tp_group=dist.group.WORLD,
            parallel_mode="row",
        )  # fmt: skip
        with te.fp8_autocast(enabled=True):
            layer(half(ROWS, WIDE // 2)).sum().backward()

    assert (REDUCE, 2 * ROWS * NARROW) in events(traced(script))
