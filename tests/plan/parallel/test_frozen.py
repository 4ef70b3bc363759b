"""Adapters beside frozen weights under a layout: sums by hand, and what the command line says."""

from dataclasses import replace

import pytest

from tests.plan.parallel.builders import llama, workload
from torchtally.chips import chip
from torchtally.chips.clusters import cluster
from torchtally.cli import parsed, plan
from torchtally.cli.plan_request import resolved
from torchtally.errors import UsageError
from torchtally.plan.activations.setting import Implementation, setting_of
from torchtally.plan.adapters import adapted_flops, adapter_of
from torchtally.plan.flops import Recompute, token_flops
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.frozen import Frozen, adapters_on_chip, flops_of_token, states_of
from torchtally.plan.parallel.kernels import KernelTimes
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.parallel.updates import updates
from torchtally.plan.questions.workload import workload_of
from torchtally.plan.recipes import recipe
from torchtally.work.convention import Convention

MODEL = llama(width=8, layers=3, heads=2, kv_heads=1, ffn=20, vocabulary=10)
"""Matrices of a layer: 8*8 + 2 * 4*8 + 8*8 + 3 * 20*8 = 672; two norms of 8. Embedding and head 80
each, the last norm 8: 3 * 688 + 168 = 2,232 numbers."""
FROZEN = Frozen(adapter_of(MODEL, 2, ("q", "down")), weight_format("bf16"))
"""Of rank 2: beside q (8, 8) A of 16 and B of 16, beside down (8, 20) A of 40 and B of 16: 88."""
ADAMW, BF16 = optimizer("adamw"), recipe("bf16")


def test_frozen_weights_have_no_gradients_or_state() -> None:
    """2,232 numbers of 2 bytes, and 264 in adapters, of 4 bytes with 4 of gradients and 8 of
    state.
    """
    states = states_of(MODEL, Layout(), FROZEN, ADAMW, BF16, stage=0)
    assert states.parameters.value == 2 * 2232 + 4 * 264
    assert states.gradients.value == 4 * 264
    assert states.optimizer.value == 8 * 264
    assert states.total.value == 2 * 2232 + 16 * 264


def test_both_are_shared_by_fsdp() -> None:
    """Among two; the layer at work and the next, 688 numbers each, are gathered in 2 bytes."""
    layout = Layout(data=2, shard=Sharding.ZERO3)
    states = states_of(MODEL, layout, FROZEN, ADAMW, BF16, stage=0)
    assert states.parameters.value == 2232 + 2 * 264
    assert states.gradients.value == 2 * 264
    assert states.optimizer.value == 4 * 264
    assert states.gathered.value == 2 * 688 * 2


def test_adapters_are_split_as_their_matrix() -> None:
    """Among two: of q by its outputs B (8, 2), of down by its inputs A (2, 20)."""
    beside = adapters_on_chip(MODEL, Layout(tensor=2), FROZEN.adapter).layers
    assert {weight.name: weight.shape for weight in beside} == {
        "q A": (2, 8), "q B": (4, 2), "down A": (2, 10), "down B": (8, 2)
    }  # fmt: skip


def test_weights_in_4_bits_take_a_matrix_at_work() -> None:
    """The largest, gate, up or down of 160 numbers, in 2 bytes."""
    packed = replace(FROZEN, base=weight_format("nf4"))
    assert states_of(MODEL, Layout(), packed, ADAMW, BF16, stage=0).casts.value == 320


def test_weights_in_the_format_of_products_are_multiplied_as_they_are() -> None:
    packed = replace(FROZEN, base=weight_format("nvfp4"))
    states = states_of(MODEL, Layout(), packed, ADAMW, recipe("nvfp4"), stage=0)
    assert states.casts.value == 0


@pytest.mark.parametrize(
    ("name", "base"), [("fp8", "fp8-tensor"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4")]
)
def test_adapters_beside_products_in_8_or_4_bits(name: str, base: str) -> None:
    """Frozen weights are held in that format; operands are written in one order, since no gradient
    of a weight takes another, and 16 bits are kept of adapters' inputs.
    """
    words = ["llama-2-70b", "--gpus", "8xB200", "--lora", "16", "--recipe", name]
    tuned = workload_of(resolved(plan.asked_of(parsed(["plan", *words]))))[0]
    assert tuned.frozen is not None
    assert tuned.frozen.base.name == base
    assert tuned.kernel_times.quantised_orders == 1
    with_adapters = setting_of(tuned.model, 1, 8, tuned.recipe, adapter=tuned.frozen.adapter)
    assert with_adapters.operand_bytes == 2


def test_frozen_weights_in_another_format_than_products_are_refused() -> None:
    words = ["llama-2-70b", "--gpus", "B200", "--lora", "16", "--recipe", "fp8", "--weights", "nf4"]
    with pytest.raises(UsageError, match="give --weights fp8-tensor"):
        workload_of(resolved(plan.asked_of(parsed(["plan", *words]))))


def test_eight_bits_are_those_of_the_chip() -> None:
    """An MI300X multiplies numbers without a negative zero."""
    assert recipe("fp8").on(chip("MI300X")).products == "float8_e4m3fnuz"
    assert recipe("fp8").on(chip("MI355X")) == recipe("fp8").on(chip("A100-SXM")) == recipe("fp8")


def test_a_step_counts_what_adapters_do() -> None:
    """FLOPs as `tally plan --lora` has them; no gradients of frozen weights: less than trained,
    where matrices are wide and adapters run in the layer's dtype.
    """
    trained = workload(model=llama(width=8192, heads=64, ffn=28672, layers=2), recipe=BF16)
    adapter = adapter_of(trained.model, 8)
    frozen = replace(trained, frozen=Frozen(adapter, weight_format("bf16")))
    layout = Layout(
        data=trained.cluster.count, shard=Sharding.ZERO3, implementation=Implementation.FUSED
    )
    steps = [Pricing(each).step(layout) for each in (frozen, trained)]
    assert steps[0].seconds.value < steps[1].seconds.value
    assert steps[0].memory.total.value < steps[1].memory.total.value
    flops = adapted_flops(trained.model, adapter, trained.sequence, Convention.FULL)
    tokens = layout.global_batch * trained.sequence
    chips, peak = trained.cluster.count, trained.cluster.chip.peak_flop_per_s("bfloat16")
    expected = flops.total.value * tokens / steps[0].seconds.value / chips / peak
    if steps[0].attention is Convention.FULL:
        assert steps[0].mfu.value == pytest.approx(expected)


def test_magnitudes_have_no_layout() -> None:
    adapter = adapter_of(MODEL, 2, ("q",), has_magnitude=True)
    with pytest.raises(UsageError, match="--dora and --layout cannot be combined"):
        Frozen(adapter, weight_format("bf16")).check(MODEL)


def test_frozen_weights_are_gathered_as_they_are_kept() -> None:
    """Of 2,232 numbers of 2 bytes each of two chips sends the other half: 2,232 bytes. Gradients of
    264 numbers of 4 bytes: half of them.
    """
    layout = Layout(data=2, shard=Sharding.ZERO3)
    work = KernelTimes(chip("H100-SXM"), BF16)
    sent = updates(MODEL, layout, ADAMW, cluster("2xH100-SXM"), work, FROZEN)
    assert sent.gathered.sent.value == 2232
    assert sent.gradients.sent.value == 2 * 264


def test_what_is_recomputed_comes_on_top() -> None:
    """Layers run once more, with frozen weights as with trained ones."""
    flops = flops_of_token(MODEL, 4, Convention.FULL, Recompute.FULL, FROZEN)
    plain = token_flops(MODEL, 4, attention=Convention.FULL, recompute=Recompute.FULL)
    assert flops.hardware.value - flops.model.value == plain.recompute.value > 0
