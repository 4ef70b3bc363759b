"""What a step does for its parameters: gradients and weights between chips, and the optimizer.

p: stages.  m: micro-batches.
"""

from dataclasses import dataclass, replace

from torchtally.chips import Cluster
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.weights import Group
from torchtally.plan.closed_form import Count, Number, ParameterCount, Seconds, closed_form
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel.communication import Traffic, add_up, repeat
from torchtally.plan.parallel.compute import optimizer_s
from torchtally.plan.parallel.frozen import STATES, Frozen, adapters_on_chip
from torchtally.plan.parallel.kernels import KernelTimes
from torchtally.plan.parallel.layout import Layout, Sharding, spread_over
from torchtally.plan.parallel.overlap import Overlap, exposed_by_layers_s
from torchtally.plan.parallel.shards import ChipWeights, chip_weights
from torchtally.plan.parallel.stage import StageTime
from torchtally.plan.parallel.states import parameters_of_stage
from torchtally.plan.parallel.traffic import gather_traffic, gradient_traffic
from torchtally.plan.quantity import Quantity, total_s
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of the last stage, whose weights are the head's too."""

    gradients: Traffic
    """Once over all of the stage's weights."""
    gathered: Traffic
    """Once; nothing where nothing is shared."""
    units: Quantity
    """Layers, and the head: what is sent at once."""
    optimizer: Quantity


def updates(
    model: Model,
    layout: Layout,
    optimizer: Optimizer,
    cluster: Cluster,
    work: KernelTimes,
    frozen: Frozen | None = None,
) -> Updates:
    """What is sent for parameters layer by layer, and the optimizer's step. Beside frozen weights
    it is adapters' gradients and steps, and weights are gathered as they are kept.
    """
    stage, recipe = layout.pipeline - 1, work.recipe
    held = here = chip_weights(model, layout)
    if frozen is not None:
        here, work, recipe = (
            adapters_on_chip(model, layout, frozen.adapter),
            replace(work, recipe=STATES, times={}),
            STATES,
        )
    units = _units(model.layers, spread_over(model.layers, layout.pipeline))
    gradients, gathered = {}, {}
    for of_experts in (False, True):
        count = parameters_of_stage(here, layout, stage, of_experts=of_experts)
        if not count.value:
            continue
        unit = _a_unit(count, units)
        word = "experts" if of_experts else "others"
        gradients[word] = gradient_traffic(unit, layout, recipe, cluster, of_experts=of_experts)
        if frozen is not None and layout.shard is Sharding.ZERO3:
            kept = parameters_of_stage(held, layout, stage, of_experts=of_experts)
            unit = _as_float32(_a_unit(kept, units), frozen.itemsize_bytes(model))
        gathered[word] = gather_traffic(unit, layout, recipe, cluster, of_experts=of_experts)
    return Updates(
        repeat("gradients", add_up("gradients of a unit", gradients), units).at_pace(work.pace),
        repeat("weights", add_up("weights of a unit", gathered), units).at_pace(work.pace),
        units,
        _optimizer_s(here, layout, optimizer, work),
    )


@closed_form("frozen weights of a unit", Unit.PARAMETERS, note="as many numbers in float32")
def _as_float32(parameters: ParameterCount, itemsize_bytes: Number) -> str:
    return "ceil(parameters * itemsize_bytes / 4)"


@closed_form("units", Unit.NUMBER, note="layers of the stage, and the head")
def _units(layers: Count, stages: Number) -> str:
    return "layers / stages + 1"


@closed_form("a unit", Unit.PARAMETERS)
def _a_unit(parameters: ParameterCount, units: Number) -> str:
    return "ceil(parameters / units)"


def _optimizer_s(
    here: ChipWeights, layout: Layout, optimizer: Optimizer, work: KernelTimes
) -> Quantity:
    is_shared, p = layout.shard is not Sharding.NONE, layout.pipeline
    shards, expert_shards = (layout.shards, layout.expert_shards) if is_shared else (1, 1)
    dense = [weight for weight in here.layers if weight.group is not Group.EXPERTS]
    experts = [weight for weight in here.layers if weight.group is Group.EXPERTS]
    ends = [*here.head, *(here.embedding if p == 1 else ())]
    parts = {"layers": (dense, shards * p), "experts": (experts, expert_shards * p)}
    seconds = {
        word: optimizer_s(weights, by, optimizer, layout.implementation, work)
        for word, (weights, by) in {**parts, "ends": (ends, shards)}.items()
    }
    return total_s("optimizer", **seconds)


def data_wait(layout: Layout, stage: StageTime, updates: Updates, overlap: Overlap) -> Quantity:
    """Exposed seconds of data parallelism in a step: what does not overlap with compute.

    Gradients that are not shared are sent once, behind the last micro-batch's backward pass;
    shared ones after each. Shared parameters are gathered for each pass of each micro-batch;
    else, where the optimizer's state is shared, once, behind the first forward pass.
    """
    m = layout.micro_batches
    sent, fetched = updates.gradients.seconds, updates.gathered.seconds
    forward, backward = stage.forward, stage.backward
    share, units = overlap.shares["data"], updates.units
    level = layout.shard.stage
    if level == 3:
        both = total_s("fetched and sent", fetched=fetched, sent=sent)
        forward_s = exposed_by_layers_s("weights, forward", fetched, forward, share, units)
        backward_s = exposed_by_layers_s("weights, gradients", both, backward, share, units)
        return _wait_of_each_pass_s(m, forward_s, backward_s)
    gradients_s = exposed_by_layers_s("gradients", sent, backward, share, units)
    weights_s = exposed_by_layers_s("weights", fetched, forward, share, units)
    return _wait_of_a_step_s(m if level == 2 else 1, gradients_s, weights_s)


def sent_for_states_s(layout: Layout, updates: Updates) -> float:
    """All communication of data parallelism in a step, overlapped or not."""
    m, level = layout.micro_batches, layout.shard.stage
    sent_s, fetched_s = updates.gradients.seconds.value, updates.gathered.seconds.value
    if level == 3:
        return float(m * (sent_s + 2 * fetched_s))
    return float((m if level == 2 else 1) * sent_s + fetched_s)


@closed_form("data parallelism", Unit.SECONDS)
def _wait_of_each_pass_s(micro_batches: Count, forward_s: Seconds, backward_s: Seconds) -> str:
    return "micro_batches * (forward_s + backward_s)"


@closed_form("data parallelism", Unit.SECONDS)
def _wait_of_a_step_s(times: Count, gradients_s: Seconds, weights_s: Seconds) -> str:
    return "times * gradients_s + weights_s"
