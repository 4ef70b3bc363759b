"""What one chip sends in a training step, by kind of parallelism: the bytes behind the seconds.

p: stages.  m: micro-batches.
"""

from collections.abc import Mapping

from torchtally.plan.architecture.weights import Group
from torchtally.plan.closed_form import (
    Bytes,
    BytesPerParameter,
    Count,
    Number,
    ParameterCount,
    closed_form,
)
from torchtally.plan.parallel.communication import all_reduce
from torchtally.plan.parallel.degrees import IN_LAYERS, Degree, layer_traffics, share_sent_again
from torchtally.plan.parallel.layout import Layout, spread_over
from torchtally.plan.parallel.shards import chip_weights
from torchtally.plan.parallel.states import parameters_of_stage
from torchtally.plan.parallel.step import Workload
from torchtally.plan.parallel.traffic import (
    KORTHIKANTI,
    gather_traffic,
    gradient_traffic,
    groups,
    pipeline_traffic,
)
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.units import Unit


def sent_bytes(workload: Workload, layout: Layout) -> Mapping[str, Quantity]:
    """Bytes that a chip of the last stage sends in a step, by the name of a degree.

    What messages have to carry at least; NCCL's trees and switches may move less over the wire.
    """
    sent = {degree.name: _in_layers(degree, workload, layout) for degree in IN_LAYERS}
    return {"data": _for_states(workload, layout), **sent, "pipeline": _backwards(workload, layout)}


def _in_layers(degree: Degree, workload: Workload, layout: Layout) -> Quantity:
    common = (workload.model, layout, workload.sequence, workload.recipe)
    parts = {}
    for n, kind in enumerate(workload.model.kinds):
        forward, backward = layer_traffics(degree, kind, *common, workload.cluster)
        passes = _passes_bytes(1 + share_sent_again(degree, layout), forward.sent, backward.sent)
        stages = spread_over(workload.model.layers, layout.pipeline)
        times = (kind.count, stages, layout.micro_batches)
        parts[f"layers_{n}"] = _layers_bytes(*times, passes)
    if degree.ends_traffic is not None:
        ends = degree.ends_traffic(*common, workload.cluster).sent
        # Each loss has a head and an embedding; the model's own is on the first stage.
        halves = 2 * workload.model.losses
        here = halves - layout.has_stages
        parts["ends"] = _ends_bytes(here, halves, layout.micro_batches, ends)
        if layout.is_sequence_parallel:
            parts["norms"] = _norms(workload, layout)
    return total(f"{degree.words} bytes", Unit.BYTES, parts)


@closed_form("passes", Unit.BYTES)
def _passes_bytes(times_forward: Number, forward: Bytes, backward: Bytes) -> str:
    return "times_forward * forward + backward"


@closed_form("layers of the stage", Unit.BYTES)
def _layers_bytes(layers: Count, stages: Number, micro_batches: Count, each: Bytes) -> str:
    return "layers / stages * micro_batches * each"


@closed_form("embedding and head", Unit.BYTES)
def _ends_bytes(here: Count, halves: Count, micro_batches: Count, both: Bytes) -> str:
    return "here / halves * micro_batches * both"


def _norms(workload: Workload, layout: Layout) -> Quantity:
    """Gradients of norms, of which each chip has its tokens' part, summed once in a step."""
    here = chip_weights(workload.model, layout)
    spread, last = (
        sum(weight.elements for weight in weights if weight.group is Group.NORMS)
        for weights in (here.layers, here.head)
    )
    gradients = _norms_bytes(
        spread,
        spread_over(workload.model.layers, layout.pipeline),
        last,
        workload.recipe.gradient_bytes,
    )
    among = groups(layout, workload.cluster).tensor
    return all_reduce(gradients, among, workload.cluster).sent


@closed_form("norms", Unit.BYTES, KORTHIKANTI)
def _norms_bytes(
    layers: ParameterCount, stages: Number, last: ParameterCount, bytes_each: BytesPerParameter
) -> str:
    return "(layers / stages + last) * bytes_each"


def _for_states(workload: Workload, layout: Layout) -> Quantity:
    """Gradients, and gathered weights: see `updates.data_wait` for how often."""
    m, level = layout.micro_batches, layout.shard.stage
    here = chip_weights(workload.model, layout)
    parts = {}
    for of_experts in (False, True):
        stage = layout.pipeline - 1
        count = parameters_of_stage(here, layout, stage, of_experts=of_experts)
        if not count.value:
            continue
        word = "experts" if of_experts else "others"
        common = (count, layout, workload.recipe, workload.cluster)
        gradients = gradient_traffic(*common, of_experts=of_experts).sent
        weights = gather_traffic(*common, of_experts=of_experts).sent
        gradient_times = m if level >= 2 else 1
        weight_times = (0, 1, 1, 2 * m)[level]
        parts[word] = _states_bytes(gradient_times, gradients, weight_times, weights)
    return total("data-parallel bytes", Unit.BYTES, parts)


@closed_form("states", Unit.BYTES)
def _states_bytes(
    gradient_times: Count, gradients: Bytes, weight_times: Count, weights: Bytes
) -> str:
    return "gradient_times * gradients + weight_times * weights"


def _backwards(workload: Workload, layout: Layout) -> Quantity:
    """The last stage passes gradients back, from each of its chunks of layers; between its own
    chunks it passes activations on, too.
    """
    common = (workload.model, layout, workload.sequence, workload.recipe, workload.cluster)
    once = pipeline_traffic(*common).sent
    times = layout.micro_batches * (2 * layout.virtual_stages - 1)
    return derive(
        "pipeline bytes", Unit.BYTES, "times * each", times=of(times, Unit.COUNT), each=once
    )
