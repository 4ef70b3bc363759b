"""The law of every public function of `napkin.parallel`. A new function's belongs here."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.plan.laws import Law, either, falls, real, rises, whole
from tests.plan.parallel.builders import llama, mixture, workload
from torchtally.chips import chip
from torchtally.chips.chip import Link
from torchtally.chips.clusters import cluster
from torchtally.plan.activations import AttentionKernel, Implementation
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import OPTIMIZERS, optimizer
from torchtally.plan.parallel import (
    attention,
    chip_memory,
    communication,
    compute,
    kernels,
    layout,
    overlap,
    passes,
    pipeline,
    plain,
    pricing,
    rates,
    search,
    shards,
    stage,
    states,
    traffic,
    updates,
)
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.recipes import RECIPES, recipe
from torchtally.units import Unit

NET = communication.network(cluster("64xH100-SXM"))
H100, MODEL, MIXED, ADAMW = chip("H100-SXM"), llama(), recipe("mixed"), optimizer("adamw")
KIND = MODEL.kinds[0]
SEQUENCE = 2048

NETWORKS = st.sampled_from([NET, communication.network(cluster("64xA100-SXM"))])
GROUPS = st.sampled_from(
    [communication.RankGroup(*pair) for pair in ((1, 1), (8, 8), (16, 8), (8, 1))]
)
BYTES = whole(0, 10**13)
COUNT = whole(1, 1000)
SECONDS = real(0, 1e6)
SHARE = real(0, 1)
PARAMETERS = whole(1, 10**12)
SCHEDULES = st.sampled_from(list(Schedule))
CHIPS = st.sampled_from([chip(name) for name in ("H100-SXM", "A100-SXM", "B200")])
RECIPE = st.sampled_from(list(RECIPES.values()))
MODELS = st.sampled_from([llama(), mixture(), llama(is_tied=True)])
TOKENS = st.sampled_from([512, 1024, 2048, 4096])
LAYOUTS = st.builds(
    Layout,
    data=st.sampled_from([4, 8]),
    shard=st.sampled_from(list(Sharding)),
    tensor=st.sampled_from([1, 2]),
    is_sequence_parallel=st.booleans(),
    pipeline=st.sampled_from([1, 2]),
    context=st.sampled_from([1, 2]),
    expert=st.just(1),
    micro_batch=st.sampled_from([1, 2]),
    micro_batches=st.sampled_from([1, 4]),
    recompute=st.sampled_from(list(Recompute)),
    kernel=st.sampled_from(list(AttentionKernel)),
    implementation=st.sampled_from(list(Implementation)),
)


def seconds_of(found: Any) -> Quantity:
    result: Quantity = found.seconds
    return result


def given(number: float, unit: Unit) -> Quantity:
    return of(number, unit, "given")


def works(mesh: Layout) -> stage.LayerWorks:
    return stage.works(MODEL, mesh, SEQUENCE, MIXED, H100, NET)


def stage_time(mesh: Layout) -> stage.StageTime:
    return stage.stage_time(stage.pieces(works(mesh), mesh, overlap.Overlap()), mesh.pipeline)


def layer_activations(mesh: Layout) -> chip_memory.LayerActivations:
    return chip_memory.layer_activations(MODEL, mesh, SEQUENCE, MIXED)


def stage_activations(mesh: Layout) -> chip_memory.StageActivations:
    return chip_memory.stage_activations(layer_activations(mesh), mesh.pipeline, stage=0)


def chip_states(mesh: Layout) -> states.ChipStates:
    return states.chip_states(MODEL, mesh, MIXED, ADAMW, stage=0)


COLLECTIVES = [
    Law(
        collective,
        Unit.SECONDS,
        {"payload": rises(BYTES), "group": either(GROUPS), "network": either(NETWORKS)},
        seconds_of,
    )
    for collective in (
        communication.all_reduce,
        communication.all_gather,
        communication.reduce_scatter,
        communication.all_to_all,
    )
]
COMMUNICATION = [
    *COLLECTIVES,
    Law(
        communication.send,
        Unit.SECONDS,
        {
            "payload": rises(BYTES),
            "crosses_nodes": either(st.booleans()),
            "network": either(NETWORKS),
        },
        seconds_of,
    ),
    Law(
        communication.repeated,
        Unit.SECONDS,
        {
            "name": either(st.just("again")),
            "transfer": either(
                BYTES.map(
                    lambda payload: communication.all_gather(
                        payload, communication.RankGroup(8, 8), NET
                    )
                )
            ),
            "times": either(COUNT.map(lambda number: given(number, Unit.COUNT))),
        },
        seconds_of,
    ),
    Law(
        communication.summed,
        Unit.SECONDS,
        {
            "name": either(st.just("both")),
            "transfers": either(
                BYTES.map(
                    lambda payload: {
                        "first": communication.all_gather(
                            payload, communication.RankGroup(8, 8), NET
                        )
                    }
                )
            ),
        },
        seconds_of,
    ),
    *(
        Law(
            function,
            Unit.BYTE_PER_S,
            {"link": either(real(1e6, 1e13).map(lambda speed: Link("a wire", speed)))},
        )
        for function in (rates.reached_in_node, rates.reached_between_nodes)
    ),
]
PIPELINE = [
    Law(
        pipeline.bubble_s,
        Unit.SECONDS,
        {
            "schedule": either(SCHEDULES),
            "stages": rises(COUNT),
            "forward_s": rises(SECONDS),
            "input_s": rises(SECONDS),
            "weight_s": either(SECONDS),
            "virtual_stages": falls(COUNT),
        },
    ),
    Law(
        pipeline.bubble_fraction,
        Unit.NUMBER,
        {
            "schedule": either(SCHEDULES),
            "stages": rises(COUNT),
            "micro_batches": falls(COUNT),
            "virtual_stages": falls(COUNT),
        },
    ),
    Law(
        pipeline.in_flight,
        Unit.NUMBER,
        {
            "schedule": either(SCHEDULES),
            "stages": rises(COUNT),
            "micro_batches": rises(COUNT),
            "virtual_stages": either(COUNT),
        },
    ),
]
OF_A_LAYER = {
    "layer": either(st.just(KIND)),
    "model": either(st.just(MODEL)),
    "layout": either(LAYOUTS),
    "sequence": rises(TOKENS),
    "recipe": either(RECIPE),
    "network": either(NETWORKS),
}
OF_THE_MODEL = {word: argument for word, argument in OF_A_LAYER.items() if word != "layer"}
OF_PARAMETERS = {
    "parameters": rises(PARAMETERS),
    "layout": either(LAYOUTS),
    "recipe": either(RECIPE),
    "network": either(NETWORKS),
    "of_experts": either(st.booleans()),
}
TRAFFIC = [
    Law(traffic.tensor_traffic, Unit.SECONDS, OF_A_LAYER, seconds_of),
    Law(traffic.context_traffic, Unit.SECONDS, OF_A_LAYER, seconds_of),
    Law(traffic.expert_traffic, Unit.SECONDS, OF_A_LAYER, seconds_of),
    Law(traffic.outer_tensor_traffic, Unit.SECONDS, OF_THE_MODEL, seconds_of),
    Law(traffic.pipeline_traffic, Unit.SECONDS, OF_THE_MODEL, seconds_of),
    Law(traffic.gradient_traffic, Unit.SECONDS, OF_PARAMETERS, seconds_of),
    Law(traffic.gather_traffic, Unit.SECONDS, OF_PARAMETERS, seconds_of),
]
ON_A_CHIP = {
    "model": either(MODELS),
    "layout": either(LAYOUTS),
    "sequence": rises(TOKENS),
    "recipe": either(st.sampled_from([MIXED, RECIPES["amp"], RECIPES["fp8"]])),
    "chip": either(CHIPS),
}
WORK = [
    Law(
        compute.layer_work,
        Unit.SECONDS,
        {"kind": either(st.just(KIND)), **ON_A_CHIP, "model": either(st.just(MODEL))},
        lambda found: found.forward,
    ),
    Law(compute.head_work, Unit.SECONDS, ON_A_CHIP, lambda found: found.forward),
    Law(compute.embedding_work, Unit.SECONDS, ON_A_CHIP, lambda found: found.forward),
    Law(
        compute.made_again,
        Unit.SECONDS,
        {
            "work": either(LAYOUTS.map(lambda mesh: works(mesh).layers[0][1])),
            "layout": either(LAYOUTS),
        },
    ),
    Law(
        compute.optimizer_s,
        Unit.SECONDS,
        {
            "weights": either(MODELS.map(lambda model: shards.held(model).layers)),
            "shards": falls(COUNT),
            "recipe": either(RECIPE),
            "optimizer": either(st.sampled_from(list(OPTIMIZERS.values()))),
            "implementation": either(st.sampled_from(list(Implementation))),
            "chip": either(CHIPS),
        },
    ),
    Law(
        attention.attention_s,
        Unit.SECONDS,
        {
            "kind": either(st.just(KIND)),
            "model": either(st.just(MODEL)),
            "sequence": rises(TOKENS),
            "layout": either(LAYOUTS),
            "work": either(CHIPS.map(lambda gpu: kernels.KernelTimes(gpu, MIXED))),
        },
        lambda found: found[0],
    ),
]
MEMORY = [
    Law(
        chip_memory.chip_memory,
        Unit.BYTES,
        {**ON_A_CHIP, "optimizer": either(st.just(ADAMW))},
        lambda found: found.total,
    ),
    Law(
        states.chip_states,
        Unit.BYTES,
        {
            "model": either(MODELS),
            "layout": either(LAYOUTS),
            "recipe": either(RECIPE),
            "optimizer": either(st.sampled_from(list(OPTIMIZERS.values()))),
            "stage": either(st.just(0)),
        },
        lambda found: found.total,
    ),
    Law(
        states.parameters_of_stage,
        Unit.PARAMETERS,
        {
            "weights": either(MODELS.map(shards.held)),
            "layout": either(LAYOUTS),
            "stage": either(st.just(0)),
            "of_experts": either(st.booleans()),
        },
    ),
    Law(
        chip_memory.layer_activations,
        Unit.BYTES,
        {word: argument for word, argument in ON_A_CHIP.items() if word != "chip"},
        lambda found: found.head,
    ),
    Law(
        chip_memory.stage_activations,
        Unit.BYTES,
        {
            "activations": either(LAYOUTS.map(layer_activations)),
            "stages": either(st.integers(2, 8)),
            "stage": either(st.just(0)),
        },
        lambda found: found.layers,
    ),
    Law(
        chip_memory.memory_of_stage,
        Unit.BYTES,
        {
            "layout": either(LAYOUTS),
            "states": either(LAYOUTS.map(chip_states)),
            "activations": either(LAYOUTS.map(stage_activations)),
            "outside": either(BYTES.map(lambda number: given(number, Unit.BYTES))),
            "stage": either(st.just(0)),
        },
        lambda found: found.total,
    ),
    Law(
        chip_memory.flying_on,
        Unit.NUMBER,
        {"layout": either(LAYOUTS), "stage": either(st.just(0))},
    ),
    Law(
        chip_memory.kept_bytes,
        Unit.BYTES,
        {
            "activations": either(LAYOUTS.map(stage_activations)),
            "flying": either(COUNT.map(lambda number: given(number, Unit.NUMBER))),
        },
    ),
    Law(
        chip_memory.at_the_end,
        Unit.BYTES,
        {"layout": either(LAYOUTS), "activations": either(LAYOUTS.map(stage_activations))},
    ),
    Law(chip_memory.outside, Unit.BYTES, {"layout": either(LAYOUTS), "chip": either(CHIPS)}),
]
OVERLAP = [
    Law(
        overlap.exposed,
        Unit.SECONDS,
        {
            "name": either(st.just("wait")),
            "sent_s": either(SECONDS.map(lambda value: given(value, Unit.SECONDS))),
            "work_s": either(SECONDS.map(lambda value: given(value, Unit.SECONDS))),
            "share": falls(SHARE),
        },
    ),
    Law(
        overlap.exposed_by_layers,
        Unit.SECONDS,
        {
            "name": either(st.just("wait")),
            "sent_s": either(SECONDS.map(lambda value: given(value, Unit.SECONDS))),
            "work_s": either(SECONDS.map(lambda value: given(value, Unit.SECONDS))),
            "share": falls(SHARE),
            "layers": either(COUNT.map(lambda number: given(number, Unit.NUMBER))),
        },
    ),
]
STEP = [
    Law(
        stage.works,
        Unit.SECONDS,
        {
            **ON_A_CHIP,
            "model": either(st.just(MODEL)),
            "network": either(NETWORKS),
        },
        lambda found: found.layers[0][1].forward,
    ),
    Law(
        stage.pieces,
        Unit.SECONDS,
        {
            "works": either(LAYOUTS.map(works)),
            "layout": either(LAYOUTS),
            "overlap": either(st.just(overlap.Overlap())),
        },
        lambda found: found.outer_tensor,
    ),
    Law(
        stage.stage_time,
        Unit.SECONDS,
        {
            "pieces": either(
                LAYOUTS.map(lambda mesh: stage.pieces(works(mesh), mesh, overlap.Overlap()))
            ),
            "stages": either(st.integers(1, 8)),
        },
        lambda found: found.forward,
    ),
    Law(
        updates.updates,
        Unit.SECONDS,
        {
            "model": either(MODELS),
            "layout": either(LAYOUTS),
            "recipe": either(RECIPE),
            "optimizer": either(st.just(ADAMW)),
            "chip": either(CHIPS),
            "network": either(NETWORKS),
        },
        lambda found: found.optimizer,
    ),
    Law(
        updates.data_wait,
        Unit.SECONDS,
        {
            "layout": either(LAYOUTS),
            "stage": either(LAYOUTS.map(stage_time)),
            "updates": either(
                LAYOUTS.map(lambda mesh: updates.updates(MODEL, mesh, MIXED, ADAMW, H100, NET))
            ),
            "overlap": either(SHARE.map(lambda data: overlap.Overlap(data=data))),
        },
    ),
    Law(
        pricing.step,
        Unit.SECONDS,
        {
            "workload": either(MODELS.map(lambda model: workload(model, "64xH100-SXM"))),
            "layout": either(LAYOUTS),
        },
        seconds_of,
    ),
    Law(
        search.search,
        Unit.SECONDS,
        {
            "workload": either(st.just(workload(chips="4xH100-SXM"))),
            "global_batch": rises(st.sampled_from([8, 16, 32])),
        },
        lambda found: found.steps[0].seconds,
        examples=3,
    ),
]
PARALLEL_LAWS = [
    *COMMUNICATION,
    *PIPELINE,
    *TRAFFIC,
    *WORK,
    *MEMORY,
    *OVERLAP,
    *STEP,
]
NO_QUANTITY: list[Callable[..., Any]] = [
    communication.network,
    communication.group,
    traffic.groups,
    traffic.gathered_itemsize_bytes,
    chip_memory.ends,
    kernels.word_of,
    plain.plain_number,
    layout.invalidities,
    shards.held,
    shards.layer_on_chip,
    shards.on_chip,
    shards.elements,
    passes.norm,
    passes.residual,
    passes.rotation,
    passes.dropout,
    passes.branches,
    passes.activation,
    passes.loss,
    passes.scores,
    passes.optimizer_accesses,
]
"""Facts, names, groups and parts of weights: they answer with no quantity (each has its own test
beside this file)."""
