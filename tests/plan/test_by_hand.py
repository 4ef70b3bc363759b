"""One sum by hand for every closed form, with its arithmetic written out.

`mutants.py` changes the numbers of the formulas one by one and holds that a sum here, or in the
tests of its list, fails each time.
"""

from dataclasses import replace

import pytest

from tests.plan.dimensions import check_units
from tests.plan.parallel.builders import llama, mixture, workload
from torchtally.chips import chip
from torchtally.chips.clusters import cluster
from torchtally.plan import capacity, flops, memory, optimizers, scaling, training
from torchtally.plan.activations.kept import (
    embedding_activation_bytes,
    head_activation_bytes,
    layer_activation_bytes,
    layer_saved,
    loss_bytes,
    working_activation_bytes,
)
from torchtally.plan.activations.setting import AttentionKernel, Implementation, Loss, setting_of
from torchtally.plan.architecture.model import LatentAttention
from torchtally.plan.architecture.weights import Group, Weight, weights_of
from torchtally.plan.counted import CountedStep
from torchtally.plan.deep_linear import deep_linear_activation_bytes, deep_linear_flops
from torchtally.plan.flops import Recompute, keys_seen
from torchtally.plan.parallel import (
    chip_memory,
    communication,
    delays,
    overlap,
    pricing,
    updates,
    volume,
)
from torchtally.plan.parallel.compute import layer_work, optimizer_s, recompute_s
from torchtally.plan.parallel.kernels import KernelTimes
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.passes import MemoryPasses
from torchtally.plan.parallel.pipeline import bubble_s
from torchtally.plan.parallel.shards import chip_weights
from torchtally.plan.parallel.states import chip_states, parameters_of_stage
from torchtally.plan.parallel.traffic import gathered_itemsize_bytes
from torchtally.plan.parameters import decoder_parameters, group_parameters, parameters
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions import Request, counted, subject
from torchtally.plan.questions.chips_needed import chips_to_hold, fewest_chips
from torchtally.plan.questions.implied_mfu import implied_mfu
from torchtally.plan.questions.largest import largest_batch, largest_model
from torchtally.plan.questions.layouts import layouts
from torchtally.plan.questions.model_within import mean_tokens_per_s
from torchtally.plan.questions.request import flops_per_token
from torchtally.plan.questions.tokens_within import tokens_within
from torchtally.plan.questions.training_time import scaled_s, training_time
from torchtally.plan.recipes import recipe
from torchtally.timing.constants import GAP_S, KERNEL_S, PLACES_PER_S
from torchtally.timing.network import RankGroup
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.units import Unit
from torchtally.work.convention import Convention
from torchtally.work.geometry import causal

MODEL = llama(width=8, layers=3, heads=2, kv_heads=1, ffn=20, vocabulary=10)
"""Matrices of a layer: 8*8 + 2 * 4*8 + 8*8 + 3 * 20*8 = 672; two norms of 8."""
LATENT = LatentAttention(
    heads=2, query_rank=None, kv_rank=5, plain_head_dim=3, rotary_head_dim=2, value_head_dim=4
)
FULL, CAUSAL = Convention.FULL, Convention.CAUSAL
MIXED, BF16, FP32, AMP = (recipe(name) for name in ("mixed", "bf16", "fp32", "amp"))
ADAMW, H100 = optimizers.optimizer("adamw"), chip("H100-SXM")
WEIGHTS = weights_of(MODEL)
PEAK = 989.4e12


def assert_same(quantity: Quantity, expected: float) -> None:
    check_units(quantity)
    assert quantity.value == pytest.approx(expected, rel=1e-12)


def test_training() -> None:
    assert_same(training.training_flops(70, 15), 6 * 70 * 15)
    assert_same(training.training_flops_of(5, 7), 5 * 7)
    assert_same(training.training_s(1200, 2, 10, 0.5), 1200 / (2 * 10 * 0.5))
    assert_same(training.training_s_with_recompute(10, 20, 4, 5), 8 * 10 * 20 / (4 * 5))
    assert_same(training.chips_needed(1001, 10, 10, 0.5), 21)  # 1001 / (10 * 10 * 0.5), rounded up
    assert_same(training.flops_within(10, 3, 7, 0.5), 3 * 7 * 0.5 * 10)
    assert_same(training.tokens_for(100, 7), 14)  # 100 / 7, rounded down
    assert_same(training.mfu(100, 6, 3, 400), 100 * 6 / (3 * 400))
    assert_same(training.mfu_of_training(7200, 2, 4), 7200 / (3600 * 2 * 4))
    assert_same(training.tokens_per_s(6, 3, 400, 0.5), 3 * 400 * 0.5 / 6)
    assert_same(training.reached_flop_per_s(100, 6, 3), 100 * 6 / 3)


def test_money_and_energy() -> None:
    assert_same(training.chip_hours(4, 7200), 4 * 7200 / 3600)
    assert_same(training.cost_usd(8, 2.5), 8 * 2.5)
    assert_same(training.chip_hours_for(20, 2.5), 20 / 2.5)
    assert_same(training.energy_joules(2, 700), 3600 * 2 * 700)


def test_parameters() -> None:
    counted = parameters(MODEL)
    assert_same(counted.total, 3 * (672 + 2 * 8) + 2 * 10 * 8 + 8)
    assert_same(counted.inner, 3 * (672 + 2 * 8) + 10 * 8 + 8)
    assert_same(group_parameters(Group.FEED_FORWARD, WEIGHTS), 3 * 3 * 20 * 8)
    assert_same(group_parameters(Group.EXPERTS, WEIGHTS), 0)
    routed = parameters(mixture(experts=8, active=2, layers=3))
    assert_same(routed.active, routed.total.value - 3 * 6 * 3 * 2048 * 1024)  # 6 of 8 experts idle
    assert_same(decoder_parameters(2, 8, 100, 16), 2 * (12 * 8 * 8 + 13 * 8) + (100 + 16) * 8)


def test_flops_of_a_token() -> None:
    """Six tokens: each meets 672 parameters in 3 layers, 2 heads of 4 + 4, and 10 logits."""
    weights, head, attention = 2 * 3 * 672, 2 * 8 * 10, 2 * 3 * 2 * (4 + 4) * 6
    assert_same(flops.weight_flops(MODEL), weights)
    assert_same(flops.head_flops(MODEL), head)
    assert_same(flops.attention_flops(MODEL, 6), attention)
    forward = weights + head + attention
    for recompute, again in (
        (Recompute.NONE, 0),
        (Recompute.SELECTIVE, attention),
        (Recompute.OPERATORS, 2 * 3 * (4 * 8 + 8 * 8 + 20 * 8)),  # keys, output, up
        (Recompute.FULL, weights + attention),
    ):
        counted = flops.token_flops(MODEL, 6, recompute=recompute)
        assert_same(counted.backward, 2 * forward)
        assert_same(counted.recompute, again)
        assert_same(counted.hardware, 3 * forward + again)


def test_keys_that_a_token_sees() -> None:
    whole, window, chunks = causal(100), causal(100, 10), causal(100, 30, is_chunked=True)
    assert_same(keys_seen(whole, FULL), 100)
    assert_same(keys_seen(window, FULL), 10)
    assert_same(keys_seen(chunks, FULL), 30)
    assert_same(keys_seen(whole, CAUSAL), 100 / 2)
    assert_same(keys_seen(window, CAUSAL), 10 - 10 * 10 / (2 * 100))
    assert_same(keys_seen(chunks, CAUSAL), (3 * 30 * 30 + 10 * 10) / 2 / 100)
    for geometry in (whole, window, chunks):
        attended = geometry.full_pairs * geometry.attended_share
        assert keys_seen(geometry, CAUSAL).value == pytest.approx(attended / geometry.queries)


def test_states() -> None:
    """Mixed precision: 2 bytes of weight and gradient, 4 of master weight, 2 moments of 4."""
    states = memory.states_of_count(10, MIXED, ADAMW)
    assert_same(states.total, 10 * (2 + 2 + 4 + 8))
    assert_same(memory.checkpoint_bytes(states), 10 * (4 + 8))
    assert_same(memory.checkpoint_bytes(memory.states_of_count(10, FP32, ADAMW)), 10 * (4 + 8))
    assert_same(memory.bytes_per_parameter(MIXED, ADAMW), 2 + 2 + 4 + 8)
    assert_same(memory.token_data_bytes(10, 1 << 16), 10 * 2)
    assert_same(memory.token_data_bytes(10, (1 << 16) + 1), 10 * 4)


def test_optimizer_state() -> None:
    assert_same(optimizers.uniform_state_bytes(ADAMW, 10, 4), 10 * 2 * 4)
    matrices = [Weight("matrix", Group.ATTENTION, (30, 20), 2), Weight("norm", Group.NORMS, (7,))]
    for name, expected in {
        "adafactor": 2 * 4 * (30 + 20) + 4 * 7,
        "muon": 2 * 4 * 30 * 20 + 2 * 4 * 7,
        "adamw-8bit": 2 * 2 * 4 * 30 * 20 + 2 * 4 * 7,  # too small to be quantised
    }.items():
        assert_same(
            optimizers.optimizer_state_bytes(optimizers.optimizer(name), matrices, 4), expected
        )
    large = [Weight("matrix", Group.ATTENTION, (100, 256))]
    assert_same(
        optimizers.optimizer_state_bytes(optimizers.optimizer("adamw-8bit"), large, 4),
        2 * (100 * 256 + 4 * 100),
    )


def test_what_fits() -> None:
    assert_same(capacity.largest_parameters(100, 16, 20), 5)  # (100 - 20) / 16
    assert_same(capacity.largest_parameters(100, 0.5, 200), 0)


def test_scaling() -> None:
    assert_same(scaling.optimal_tokens(70), 20 * 70)
    assert_same(scaling.optimal_parameters(6 * 20 * 10**8), 10**4)  # 20 N^2 * 6 FLOPs
    law = scaling.LossLaw(name="", irreducible=1.5, A=6.0, a=0.5, B=8.0, b=0.25, source="")
    assert_same(scaling.loss(9, 16, law), 1.5 + 6 / 3 + 8 / 2)


def test_a_deep_linear_model_of_one_layer_or_none() -> None:
    """Autocast: results 2*3*L, the batch 2*3, the last vector where its input has a gradient."""
    assert_same(deep_linear_activation_bytes(3, 0, 2, AMP), 2 * (0 + 6 + 0))
    assert_same(deep_linear_activation_bytes(3, 1, 2, AMP), 2 * (6 + 6 + 3))
    assert_same(deep_linear_activation_bytes(3, 2, 2, AMP), 2 * (12 + 6 + 9 + 3))
    assert_same(deep_linear_flops(3, 1, 2).backward, 4 * 2 * (9 + 3) - 2 * 2 * 3 * 3)
    assert_same(deep_linear_flops(3, 0, 2).backward, 4 * 2 * 3 - 2 * 2 * 3)


def test_activations_that_layers_share() -> None:
    """Token ids of 2 sequences of 33, cosines and sines of 4 dims in bfloat16."""
    assert_same(
        embedding_activation_bytes(setting_of(MODEL, 2, 33, BF16)), 2 * 33 * 8 + 2 * 33 * 4 * 2
    )
    assert setting_of(MODEL, 1, 33, BF16, context=4).words["sequence"].value == 9


def test_selective_recomputation_of_a_sequence_of_one_token() -> None:
    """Its scores are smaller than the copies of keys that a fused kernel keeps: nothing is gained.

    4 bytes each of 2 heads: scores 1, against 3 plain dims of keys beside the values.
    """
    model = replace(MODEL, kinds=(replace(MODEL.kinds[0], attention=LATENT),))
    how = {"kernel": AttentionKernel.MATH, "recompute": Recompute.SELECTIVE}
    assert_same(working_activation_bytes(setting_of(model, 1, 1, FP32, **how)), 0)  # type: ignore[arg-type]
    plain = working_activation_bytes(setting_of(MODEL, 1, 1, BF16, recompute=Recompute.SELECTIVE))
    assert_same(plain, 0)


def test_tensors_of_a_mixture() -> None:
    """Six tokens to 2 of 8 experts of width 2048, in bfloat16."""
    model = mixture()
    kept = {
        saved.name: saved.bytes.value
        for saved in layer_saved(setting_of(model, 2, 3, BF16), model.kinds[0])
    }
    assert kept["activated gate"] == kept["input of the last projection"] == 6 * 2 * 2048 * 2
    assert kept["ends of groups"] == 8 * 4


def test_tensors_of_latent_attention() -> None:
    """Six tokens in float32: a rank of 5, 2 dims with positions, 2 heads of 3 and 4 dims."""
    kind = replace(MODEL.kinds[0], attention=LATENT)
    kept = {
        saved.name: saved.bytes.value for saved in layer_saved(setting_of(MODEL, 2, 3, FP32), kind)
    }
    assert kept["input of compressed keys and values"] == 6 * 5 * 4
    assert kept["keys' part with positions"] == 6 * 2 * 4
    assert kept["values, and keys' part beside them"] == 6 * 2 * (3 + 4) * 4


def test_streams_over_memory() -> None:
    """1000 elements, 4 bytes and 2 kernels forward, 6 bytes and 3 kernels backward."""
    bandwidth = bandwidth_bytes_per_s(H100)
    there, back, *_ = KernelTimes(H100, BF16).stream("x", 1000, MemoryPasses(4, 6, 2, 3))
    assert_same(there, 1000 * 4 / bandwidth + 2 * (KERNEL_S + GAP_S))
    assert_same(back, 1000 * 6 / bandwidth + 3 * (KERNEL_S + GAP_S))


def test_streams_whose_elements_are_found_one_by_one() -> None:
    """The same, each element found twice forward and three times backward, on 132 processors."""
    bandwidth, moved = bandwidth_bytes_per_s(H100), MemoryPasses(4, 6, 2, 3, False, 2, 3)
    kernel_s = KERNEL_S + GAP_S
    there, back, *_ = KernelTimes(H100, BF16).stream("x", 1000, moved)
    assert_same(there, 1000 * 4 / bandwidth + 1000 * 2 / (PLACES_PER_S * 132) + 2 * kernel_s)
    assert_same(back, 1000 * 6 / bandwidth + 1000 * 3 / (PLACES_PER_S * 132) + 3 * kernel_s)


def test_an_optimizers_step() -> None:
    """100 parameters among 4 chips. Fused: moments, weights both ways, gradients once."""
    weights, bandwidth = [Weight("w", Group.ATTENTION, (10, 10))], bandwidth_bytes_per_s(H100)
    for how, recipe_, each in (
        (Implementation.FUSED, FP32, 2 * 8 + 2 * 4 + 4),
        (Implementation.FUSED, MIXED, 2 * 8 + 2 * 4 + 2 + 2),
        (Implementation.EAGER, FP32, 21 * 4),
        (Implementation.EAGER, MIXED, 21 * 4 + 2 + (2 + 4) + 4),
    ):
        assert_same(
            optimizer_s(weights, 4, ADAMW, how, KernelTimes(H100, recipe_)),
            100 * each / 4 / bandwidth,
        )


def test_recomputation() -> None:
    work = layer_work(MODEL.kinds[0], MODEL, Layout(), 16, KernelTimes(H100, BF16))
    assert_same(recompute_s(work, Layout()), 0)
    assert_same(recompute_s(work, Layout(recompute=Recompute.SELECTIVE)), 0)
    assert_same(recompute_s(work, Layout(recompute=Recompute.FULL)), work.forward.value)
    by_operators = recompute_s(work, Layout(recompute=Recompute.OPERATORS)).value
    assert 0 < by_operators < work.forward.value - work.attention.value


def test_what_recomputation_by_operators_keeps() -> None:
    """Six tokens of width 8, 2 heads of 4 and one of keys, in bfloat16, fused: the input, results
    of q, v and gate, attention's with a float32 for each head. Eagerly that of down, too.
    """
    fused = {"recompute": Recompute.OPERATORS, "implementation": Implementation.FUSED}
    kind, kept = MODEL.kinds[0], 6 * (2 * (8 + 8 + 4 + 20 + 8) + 4 * 2) + 16
    assert_same(layer_activation_bytes(setting_of(MODEL, 2, 3, BF16, **fused), kind), kept)  # type: ignore[arg-type]
    eager = setting_of(MODEL, 2, 3, BF16, recompute=Recompute.OPERATORS)
    assert_same(layer_activation_bytes(eager, kind), kept + 6 * 2 * 8)
    shared = setting_of(MODEL, 2, 3, BF16, tensor=2, is_sequence_parallel=True, **fused)  # type: ignore[misc]
    split = 6 * (2 * (8 + 4 + 20 + 8) + 4 * 2) / 2 + 16  # q, v (a head each), gate, attention's
    values = 6 * 2 * 4 / 2  # not split further than heads
    streams = 2 * 6 * 2 * 8 / 2  # the input, and what attention's chips have reduced
    assert_same(layer_activation_bytes(shared, kind), split + values + streams)


def test_what_recomputation_by_operators_keeps_of_a_mixture() -> None:
    """Six tokens to 2 of 8 experts, in bfloat16: 8 bytes an id, 4 a score, rows both ways."""
    model = mixture()
    alone, exchanged = (
        layer_activation_bytes(
            setting_of(model, 2, 3, BF16, recompute=Recompute.OPERATORS, is_exchanged=is_exchanged),
            model.kinds[0],
        ).value
        for is_exchanged in (False, True)
    )
    assert exchanged - alone == 2 * 6 * 2 * model.width * 2
    dense = replace(model, kinds=(replace(model.kinds[0], feed_forward=None),))
    assert_same(
        layer_activation_bytes(
            setting_of(dense, 2, 3, BF16, recompute=Recompute.OPERATORS), dense.kinds[0]
        ),
        alone - 6 * 2 * (8 + 4),
    )


def seconds(number: float) -> Quantity:
    return of(number, Unit.SECONDS, "seconds")


def test_overlap() -> None:
    """5 s of communication beside 4 s of compute; one of 3 layers always shows."""
    assert_same(overlap.exposed_s("x", seconds(5), seconds(4), 0.5), 5 - 0.5 * 4)
    assert_same(overlap.exposed_s("x", seconds(2), seconds(4), 1.0), 0)
    layers = of(3, Unit.NUMBER)
    assert_same(overlap.exposed_by_layers_s("x", seconds(6), seconds(4), 0.5, layers), 6 - 0.5 * 4)
    assert_same(overlap.exposed_by_layers_s("x", seconds(6), seconds(5), 1.0, layers), 6 / 3)


def test_delays() -> None:
    """Compute and bubble of 5 s beside the slowest; 3 s hidden; 139 launches; 8 messages, and 2 of
    9 s within nodes.
    """
    assert_same(delays.stragglers_s(1.04, seconds(4), seconds(1)), (1.04 - 1) * (4 + 1))
    assert_same(delays.slow_s(3, 1.3), 3 * 1.3)
    assert_same(scaled_s(10, 3, 2), 10 * 3 / 2)
    assert_same(delays.contention_s(0.2, 5, 2), 0.2 * (5 - 2))
    assert_same(delays.contention_s(0.2, 2, 5), 0)
    assert_same(delays.host_s(139, 0, 10, 1e-3, 1), (1.39**4 + 1**4) ** 0.25 - 1)
    assert_same(delays.host_s(139, 0, 10, 1e-3, 2), (1.39**4 + 2**4) ** 0.25 - 2)
    assert_same(delays.host_s(139, 60, 10, 1e-3, 2), 60 * 10 * 1e-3 + (1.39**4 + 2**4) ** 0.25 - 2)
    assert_same(delays.host_s(139, 60, 10, 0, 2), 0)
    assert_same(communication.paced_s(9, 2, 0.9, 8, 0.5), 2 + 7 / 0.9 + 8 * 0.5)


def test_bubbles_that_weight_gradients_fill() -> None:
    assert_same(bubble_s(Schedule.ZB_H1, 5, forward_s=1, input_s=1, weight_s=3), 0)
    assert_same(bubble_s(Schedule.ZB_H2, 5, forward_s=1, input_s=1, weight_s=3), 0)
    chunks = bubble_s(Schedule.INTERLEAVED, 5, forward_s=1, input_s=2, weight_s=3, virtual_stages=2)
    assert_same(chunks, (5 - 1) * (1 + 2 + 3) / 2)


def test_collectives() -> None:
    """Of 8 ranks 7 pieces, and for both halves of an all-reduce 14; then latency and bytes."""
    net, inside = cluster("64xH100-SXM"), RankGroup(8)
    gather = communication.all_gather(16e9, inside, net)
    assert_same(gather.sent, 7 * 2e9)
    assert_same(gather.seconds, 18.1e-6 + 7 * 1.0e-6 + 2e9 * (7 + 0.41) / 360e9)
    assert (gather.messages, gather.in_node_s) == (0, gather.seconds.value)
    assert_same(communication.all_to_all(8e9, inside, net).sent, 7e9)
    hop = communication.send(48e9, crosses_nodes=True, cluster=net)
    assert_same(hop.seconds, 8.4e-6 + 14e-6 + 1.0)
    assert_same(hop.sent, 48e9)
    nothing = communication.all_reduce(5, RankGroup(1), net)
    assert (nothing.sent.value, nothing.seconds.value) == (0, 0)
    tree = communication.all_reduce(1024, RankGroup(64, 8), net)
    assert tree.seconds.note == "tree LL"
    assert_same(tree.sent, 2 * 63 * 1024 / 64)
    assert (tree.messages, tree.in_node_s) == (1, 0)
    thrice = communication.repeat("x", tree, of(3, Unit.COUNT))
    assert_same(thrice.sent, 3 * 2 * 63 * 1024 / 64)
    assert_same(thrice.seconds, 3 * tree.seconds.value)


def test_the_gradient_of_the_logits() -> None:
    """Six tokens: two tensors in float32 of PyTorch's loss, one of 16 bits of a fused one."""
    vocabulary = MODEL.vocabulary
    assert_same(loss_bytes(setting_of(MODEL, 2, 3, BF16)), 6 * vocabulary * (4 + 4))
    fused = setting_of(MODEL, 2, 3, BF16, implementation=Implementation.FUSED)
    assert_same(loss_bytes(fused), 6 * vocabulary * 2)


@pytest.mark.parametrize(
    ("loss", "kept", "made"),
    [
        (Loss.FLOAT32, 4, 8),
        (Loss.PLAIN, 2, 4),
        (Loss.PARALLEL, 4, 2),
        (Loss.FUSED, 2, 2),
        (Loss.COMPOSER, 2, 2),
    ],
)
def test_bytes_that_each_loss_takes_for_a_logit(loss: Loss, kept: int, made: int) -> None:
    """What is kept until the backward pass, and what that makes besides: of six tokens."""
    vocabulary = MODEL.vocabulary
    at = setting_of(MODEL, 2, 3, BF16, loss=loss)
    assert_same(loss_bytes(at), 6 * vocabulary * made)
    wide = head_activation_bytes(setting_of(MODEL, 2, 3, BF16, loss=Loss.FLOAT32))
    assert wide.value - head_activation_bytes(at).value == 6 * vocabulary * (4 - kept)


def test_a_loss_in_chunks_has_the_logits_of_one() -> None:
    """Sixteen tokens in eight chunks: three tensors in float32 of two tokens. For the layers the
    gradient of the head's input is kept, of all sixteen in 16 bits, and no log-probabilities,
    labels, loss and its weight.
    """
    at = setting_of(MODEL, 4, 4, BF16, loss=Loss.CHUNKED)
    assert_same(loss_bytes(at), 2 * MODEL.vocabulary * 12)
    whole = head_activation_bytes(setting_of(MODEL, 4, 4, BF16, loss=Loss.FLOAT32))
    gone = 16 * MODEL.vocabulary * 4 + 16 * 8 + 2 * 4
    assert whole.value - head_activation_bytes(at).value == gone - 16 * MODEL.width * 2


def test_weights_in_8_bits_alone_have_no_casts_beside_them() -> None:
    """Two orders of 8 bits are as many bytes as 16 bits; with casts it is half as many again."""
    layout = Layout(data=2, shard=Sharding.ZERO1)
    plain, held = (
        chip_states(
            MODEL, layout, replace(recipe("fp8"), has_8_bit_weights=is_held), ADAMW, stage=0
        )
        for is_held in (False, True)
    )
    assert plain.parameters.value == held.parameters.value
    assert plain.casts.value > 0 == held.casts.value
    assert gathered_itemsize_bytes(replace(recipe("fp8"), has_8_bit_weights=True)) == 1


def test_moving_to_the_host_shows_where_it_takes_longer_than_a_layer() -> None:
    """10 bytes at 5 a second take 2 s: 1 s longer than forward, 0.5 s longer than backward; nothing
    beside layers of 9 s.
    """
    assert_same(delays.offload_s(3, 10, 5, 1, 1.5), 4.5)
    assert_same(delays.offload_s(3, 10, 5, 9, 9), 0)


def test_layers_whose_activations_are_away() -> None:
    """Of eight layers of 10 bytes six are: two stay, two are on their way."""
    nothing, each = of(0, Unit.BYTES), of(10, Unit.BYTES)
    kept = chip_memory.LayerActivations(((8, each),), nothing, nothing, nothing, nothing)
    assert_same(chip_memory.stage_activations(kept, 1, stage=0, offloaded=6).layers, 40)
    assert_same(chip_memory.stage_activations(kept, 1, stage=0, offloaded=2).layers, 80)


def number(size: float) -> Quantity:
    return of(size, Unit.BYTES, "bytes")


def test_activations_of_a_stage() -> None:
    """Six layers that keep 10 bytes each, on two stages; embedding 7, logits 5, working 3."""
    layers = chip_memory.LayerActivations(
        ((6, number(10)),), number(7), number(5), number(2), number(3)
    )
    first, last = (chip_memory.stage_activations(layers, 2, stage=n) for n in (0, 1))
    assert_same(first.layers, 6 * 10 / 2 + 7)
    assert_same(first.head, 0)
    assert_same(last.layers, 6 * 10 / 2)
    assert_same(chip_memory.kept_bytes(first.layers, of(2, Unit.NUMBER)), 2 * 37)
    assert_same(chip_memory.at_the_end(Layout(micro_batches=4), last), 5 + 2)
    assert_same(chip_memory.at_the_end(Layout(micro_batches=4), first), 3)
    gpipe = Layout(schedule=Schedule.GPIPE, micro_batches=4)
    assert_same(chip_memory.at_the_end(gpipe, last), 4 * 5 + 2)


def test_buffers_of_groups() -> None:
    """Groups of tensor and of data parallelism: 24 channels of 4, 4.6875 and 0.5 MiB in pages of 2,
    and a page for what is sent.
    """
    alone, two = (
        chip_memory.outside(layout, H100) for layout in (Layout(), Layout(data=2, tensor=2))
    )
    assert_same(two, alone.value + 2 * 24 * (10 + 2) * 1024 * 1024)


def test_gathered_layers_and_casts() -> None:
    """688 parameters a layer, more than either end: 2 bytes each of two layers and a gradient."""
    for shard, gathered in (
        (Sharding.ZERO3, (688 + 688) * 2 + 688 * 2),
        (Sharding.ZERO2, 688 * 2),
        (Sharding.ZERO1, 0),
    ):
        layout = Layout(data=2, shard=shard)
        assert_same(chip_states(MODEL, layout, MIXED, ADAMW, stage=0).gathered, gathered)
    again = Layout(pipeline=3, recompute=Recompute.FULL)
    assert_same(chip_states(MODEL, again, AMP, ADAMW, stage=0).casts, round(2 * (3 * 672 + 80) / 3))
    assert_same(chip_states(MODEL, Layout(), AMP, ADAMW, stage=0).casts, 0)


def test_copies_of_weights_and_gradients() -> None:
    """Three layers of 672 on three stages, one byte each in float8, whatever is recomputed. Of all
    2048 parameters of the first stage's 672 + 16 and 80 the copies that DeepSpeed makes.
    """
    one = Layout(data=4, pipeline=3, shard=Sharding.ZERO1, micro_batches=8)
    fp8 = chip_states(MODEL, one, recipe("fp8"), ADAMW, stage=0)
    assert_same(fp8.casts, 3 * 672 / 3 * 1)
    assert_same(chip_states(MODEL, replace(one, shard=Sharding.ZERO3), recipe("fp8"), ADAMW,
                     stage=0).casts, 0)  # fmt: skip
    here = 672 + 2 * 8 + 10 * 8
    copies = chip_states(MODEL, one, recipe("ds-bf16"), ADAMW, stage=0).gradient_copies
    assert_same(copies, here * (2 + 2) + here / 4 * 4)
    assert_same(chip_states(MODEL, one, MIXED, ADAMW, stage=0).gradient_copies, 0)


BIG = workload(llama(), "8xH100-SXM")
LAYOUT = Layout(
    data=1, tensor=2, pipeline=2, context=2, schedule=Schedule.INTERLEAVED, virtual_stages=2,
    micro_batches=4,
)  # fmt: skip


def test_a_step_on_a_pipeline() -> None:
    """Four micro-batches of 2048 tokens, 8 layers on 2 stages of 2 chunks."""
    prices = pricing.Pricing(replace(BIG, overlap=overlap.overlap_of(pipeline=0.25)))
    step, time = prices.step(LAYOUT), prices._stage(LAYOUT)
    parts = step.parts
    work = (time.forward, time.input_gradients, time.weight_gradients, time.ends)
    assert_same(parts["compute"], 4 * sum(quantity.value for quantity in work))
    assert_same(parts.streaming, 4 * time.streaming.value)
    there, back = time.waits_forward, time.waits_backward
    assert_same(parts["context"], 4 * (there["context"].value + back["context"].value))
    ends = time.ends_waits["tensor"].value
    assert_same(parts["tensor"], 4 * (there["tensor"].value + back["tensor"].value + ends))
    hop = prices._hop(LAYOUT).seconds.value
    assert_same(parts["pipeline"], 2 * hop * ((2 - 1) + (1 - 0.25) * 4 * 2))
    assert_same(step.tokens, 1 * 1 * 4 * 2048)
    assert_same(step.tokens_per_s, 4 * 2048 / step.seconds.value)
    one = prices._pieces(LAYOUT).layers[0]
    assert_same(time.forward, 8 * one.work.forward.value / 2)
    assert_same(there["expert"], 0)
    assert_same(pricing.step(BIG, Layout(data=8)).parts["bubble"], 0)


def test_communication_of_a_backward_pass() -> None:
    """Of a ring of c: c - 1 hops forward, and back as many and c with gradients; recomputation
    sends what the forward pass sent.
    """
    hops = LAYOUT.context - 1
    job = replace(BIG, overlap=overlap.overlap_of(context=0.0, tensor=0.0))
    for recompute, again in ((Recompute.NONE, 0), (Recompute.FULL, 1)):
        layout = replace(LAYOUT, recompute=recompute)
        prices = pricing.Pricing(job)
        sends = prices._layer(layout, 0).sends
        (layer,) = prices._pieces(layout).layers
        for name, times in (("context", (2 * hops + 1) / hops), ("tensor", 1)):
            sent = sends.forward[name].value
            assert_same(layer.waits_forward[name], sent)
            assert_same(layer.waits_backward[name], (times + again) * sent)


def test_a_head_instead_of_a_layer() -> None:
    """Three layers over two stages: the last has one and the head, which takes longer than one."""
    prices = pricing.Pricing(replace(BIG, model=llama(layers=3, width=64, ffn=64, heads=2)))
    layout = replace(LAYOUT, schedule=Schedule.ONE_F_ONE_B, virtual_stages=1)
    pieces, layer_s = prices._pieces(layout), prices.layers_s(layout) / 3
    head = pieces.head
    head_s = sum(part.value for part in (head.forward, head.input_gradients, head.weight_gradients))
    assert head_s > layer_s
    assert_same(prices._stage(layout).ends, head_s - layer_s)


def test_bytes_that_a_chip_sends_in_a_step() -> None:
    """Of the last stage: 4 of 8 layers, the head and 9 norms; 4 micro-batches of 2048 tokens."""
    tokens = 2048 * 1024 * 2
    layout = replace(LAYOUT, context=1, is_sequence_parallel=True, shard=Sharding.ZERO3, data=2)
    for recompute, passes in ((Recompute.NONE, 2), (Recompute.FULL, 3)):
        sent = volume.sent_bytes(BIG, replace(layout, recompute=recompute))
        each = 2 * tokens / 2  # gathered and scattered, half of it by each of 2 chips
        norms = (4 * 2 + 1) * 1024 * 2
        assert_same(sent["tensor"], 4 * 4 * passes * 2 * each + 4 * each + 2 * norms / 2)
        assert_same(sent["pipeline"], 4 * 3 * tokens / 2)
    held = parameters_of_stage(chip_weights(BIG.model, layout), layout, 1, of_experts=False)
    assert_same(sent["data"], (4 + 2 * 4) * held.value * 2 / 2)
    plain = volume.sent_bytes(BIG, Layout(data=8))
    assert_same(
        plain["data"], 2 * 7 * 2 * sum(weight.elements for weight in weights_of(BIG.model)) / 8
    )
    whole = volume.sent_bytes(BIG, Layout(tensor=2, data=4))
    assert_same(whole["tensor"], 8 * 2 * 2 * each + 2 * each)


def test_communication_of_parameters() -> None:
    """Four layers of a stage and the head: 5 units. Overlap of 0: everything shows."""
    layout = Layout(data=4, pipeline=2, micro_batches=3, shard=Sharding.ZERO1)
    prices = pricing.Pricing(replace(BIG, overlap=overlap.overlap_of(data=0.0)))
    updates_of_layout = prices._updates(layout)
    assert_same(updates_of_layout.units, 8 / 2 + 1)
    matrices = 4 * (4 * 1024 * 1024 + 3 * 4096 * 1024 + 2 * 1024)
    stage_parameters = matrices + 32000 * 1024 + 1024
    unit = -(-stage_parameters // 5)
    assert_same(updates_of_layout.gradients.sent, 5 * round(unit * 2 * 3 / 4))
    sent, fetched = (
        updates_of_layout.gradients.seconds.value,
        updates_of_layout.gathered.seconds.value,
    )
    for shard, expected in (
        (Sharding.ZERO1, sent + fetched),
        (Sharding.ZERO2, 3 * sent + fetched),
        (Sharding.ZERO3, 3 * (fetched + (fetched + sent))),
    ):
        time = prices._stage(layout)
        shared = replace(layout, shard=shard)
        assert_same(
            updates.data_wait(shared, time, updates_of_layout, prices.workload.overlap), expected
        )


ASKED = Request(
    recipe=BF16, optimizer=ADAMW, subject=subject(10**9), tokens=10**9, mfu=0.5,
    cluster=cluster("8xH100-SXM"), deadline_s=1e6, sequence=1024, global_batch=1000,
)  # fmt: skip


def figure(answer: object, name: str) -> Quantity:
    return next(quantity for quantity in answer.figures if quantity.name == name)  # type: ignore


def test_questions() -> None:
    memory_bytes = H100.total_memory_bytes
    assert_same(flops_per_token(ASKED)[0], 6 * 10**9)
    assert_same(mean_tokens_per_s(600, 4), 150)
    large = replace(ASKED, subject=subject(10**11))
    held = -(-8 * 10**11 // memory_bytes)  # 2 + 2 + 4 bytes a parameter, rounded up
    assert_same(chips_to_hold(large), held)
    # 6e20 FLOPs in 1e6 s at half the peak are 1.2 chips, and memory wants more.
    assert_same(figure(fewest_chips(large), "chips"), max(2, held))
    assert_same(
        figure(training_time(ASKED), "optimizer steps"), 977
    )  # 1e9 / (1000 * 1024), rounded up
    observed = implied_mfu(replace(ASKED, tokens_per_s=1e5))
    assert_same(figure(observed, "MFU, 6N"), 1e5 * 6e9 / (8 * PEAK))
    paid = replace(ASKED, deadline_s=None, budget_usd=160.0, usd_per_hour=2.0)
    seconds_paid = 3600 * (160 / 2) / 8
    assert_same(tokens_within(paid).figures[0], int(8 * PEAK * 0.5 * seconds_paid / 6e9))
    alone = replace(ASKED, sequence=None)
    assert_same(figure(largest_model(alone), "memory of all chips"), 8 * memory_bytes)


def test_questions_about_layouts() -> None:
    small = replace(ASKED, subject=subject(llama()), mfu=None, tokens=10**6, global_batch=8)
    answer = layouts(small)
    speed = figure(answer, "tokens/s").value
    assert_same(figure(answer, "training time"), 10**6 / speed)
    batch = largest_batch(small)
    assert_same(
        figure(batch, "sequences of all chips"), 8 * figure(batch, "largest micro-batch").value
    )


def test_steps_that_are_counted() -> None:
    """2 samples of 5 tokens; an update reads and writes state and weights, reads gradients, and
    writes casts: 2 x 8 + 2 x 4 + 2 + 2 = 28 bytes.
    """
    step = CountedStep(
        samples=2, tokens=5, sample="", options="", inputs="", flops_forward=20, model_flops=60,
        bytes_saved=1, working_bytes=1, seconds=1.0, parts=(),
    )  # fmt: skip
    assert counted.sample_flops(step).value == 30
    assert counted.flops_of_token(step).value == 6
    assert counted.update_s(8, 4, 2, 2, 14).value == 2
    assert training.mfu_of_step(60, 2, 100).value == 0.3
