"""The steps of many layouts of one workload, with all that they have in common computed once.

A layout's step is a sum of parts, and each part depends on a few of its numbers: what one layer
takes does not depend on the pipeline, what a chip holds not on the schedule. So thousands of
layouts cost little more than their parts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from torchtally.errors import UsageError
from torchtally.plan import training
from torchtally.plan.architecture.model import Experts
from torchtally.plan.architecture.weights import Group
from torchtally.plan.closed_form import Count, Fraction, Seconds, Tokens, closed_form
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.chip_memory import (
    ChipMemory,
    LayerActivations,
    StageActivations,
    at_the_end,
    ends,
    flying_on,
    layer_activations,
    memory_of_stage,
    outside,
    stage_activations,
)
from torchtally.plan.parallel.communication import Traffic
from torchtally.plan.parallel.compute import layer_work
from torchtally.plan.parallel.degrees import IN_LAYERS, Degree, share_sent_again
from torchtally.plan.parallel.delays import contention_s, host_s, offload_s, slow_s, stragglers_s
from torchtally.plan.parallel.frozen import flops_of_token, frozen_ends, states_of, with_adapters
from torchtally.plan.parallel.layout import (
    ZERO_BUBBLE,
    Layout,
    Schedule,
    chunks_as_long,
    spread_over,
)
from torchtally.plan.parallel.pace import BEST, Host
from torchtally.plan.parallel.pipeline import bubble_s
from torchtally.plan.parallel.shards import layer_on_chip, rows_of
from torchtally.plan.parallel.stage import (
    EndsWork,
    LayerWork,
    Pieces,
    Sends,
    StageTime,
    ends_chip_work,
    layer_sends_s,
    pieces,
    stage_time,
)
from torchtally.plan.parallel.states import ChipStates, chip_states
from torchtally.plan.parallel.step import Parts, Step, Workload
from torchtally.plan.parallel.traffic import pipeline_traffic
from torchtally.plan.parallel.updates import Updates, data_wait, sent_for_states_s, updates
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.timing.constants import MIXTURES_SLOWER, ROUND_LAUNCHES, SLOWER
from torchtally.timing.roofline.rates import achieved_flop_per_s
from torchtally.timing.stragglers import slowest_of
from torchtally.units import Unit
from torchtally.work.convention import Convention

T = TypeVar("T")
Rest = ParamSpec("Rest")
Method = Callable[Concatenate["Pricing", Layout, Rest], T]

WEIGHTS = ("tensor", "pipeline", "expert", "expert_split", "replicas", "shards", "shard")
"""What a chip's weights and their groups depend on: chips of dp and of cp hold the same ones."""
WORK = (*(degree.name for degree in IN_LAYERS), "expert_split", "is_sequence_parallel",
        "micro_batch", "kernel", "implementation")  # fmt: skip
"""What a chip's compute for one micro-batch in a layer depends on, but for recomputation."""
GROUPS = ("replicas", "tensor", "pipeline", "context", "has_experts_apart")
"""Which kinds of communication groups a chip is in depends on these."""
ACTIVATIONS = (*(name for name in WORK if not name.startswith("expert")), "recompute",
               "modules", "offloaded", "is_exchanged")  # fmt: skip
"""What a chip keeps of one micro-batch depends on: balanced experts bring it as many tokens however
they are split."""
LAYER = (*WORK, "recompute", "modules")
"""What one micro-batch through a layer depends on, besides the workload."""


def once(*fields: str) -> Callable[[Method[Rest, T]], Method[Rest, T]]:
    """Compute a part once for all layouts that agree on these fields and properties."""
    key_of = attrgetter(*fields)

    def share(method: Method[Rest, T]) -> Method[Rest, T]:
        @wraps(method)
        def part(
            pricing: "Pricing", layout: Layout, /, *args: Rest.args, **kwargs: Rest.kwargs
        ) -> T:
            key = (method, key_of(layout), args)
            value: T | None = pricing.values.get(key)
            if value is None:
                value = pricing.values[key] = method(pricing, layout, *args, **kwargs)
            return value

        return part

    return share


def step(workload: Workload, layout: Layout) -> Step:
    """A training step. The layout is taken as it is: see `invalidities`."""
    return Pricing(workload).step(layout)


class Pricing:
    """The steps of many layouts of one workload: what they have in common is computed once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.kernel_times = workload.kernel_times
        self.values: dict[tuple[Any, ...], Any] = {}
        """Parts by what they depend on."""
        is_best = workload.pace is BEST
        self.at_best = self if is_best else Pricing(replace(workload, pace=BEST))

    def step(self, layout: Layout) -> Step:
        """All of it."""
        (step,) = self.steps((layout,))
        return step

    def steps(self, layouts: Iterable[Layout]) -> tuple[Step, ...]:
        """All of each, with attention counted alike in all of them.

        In full, masked points count, too, which no kernel computes. Where that makes more than the
        chips can do, attention counts by half, as it does in `views/utilisation.py`.
        """
        steps = tuple(self._step(layout, self.workload.attention) for layout in layouts)
        if all(max(step.mfu.value, step.hfu.value) <= 1 for step in steps):
            return steps
        return tuple(self._step(step.layout, Convention.CAUSAL) for step in steps)

    def _step(self, layout: Layout, attention: Convention) -> Step:
        part, parts, memory = self.workload, self.parts(layout), self.memory(layout)
        flops = flops_of_token(part.model, part.sequence, attention, layout.recompute, part.frozen)
        tokens = _tokens(layout.global_batch, part.sequence)
        speed = tokens_in_time(tokens, parts.total)
        peak = part.cluster.chip.peak_flop_per_s(part.recipe.products)
        how = "" if attention is part.attention else ", causal by half"
        return Step(
            layout,
            parts.total,
            self.at_best.parts(layout).total.with_name("at best"),
            self._slow(parts.total),
            parts,
            memory,
            self.fits(memory),
            tokens,
            speed,
            attention,
            training.mfu(speed, flops.model, layout.chips, peak).with_name(f"MFU{how}"),
            training.mfu(speed, flops.hardware, layout.chips, peak).with_name(f"HFU{how}"),
            parts.largest,
            part.overlap.assumptions(),
        )

    def _slow(self, typical: Quantity) -> Quantity:
        slower = MIXTURES_SLOWER if self.workload.model.is_mixture else SLOWER
        return slow_s(typical, 1.0 if self.workload.pace is BEST else slower)

    def step_s(self, layout: Layout) -> float:
        """Seconds of a step alone: the sum of its parts."""
        return float(sum(quantity.value for quantity in self._parts(layout).values()))

    def least_s(self, layout: Layout) -> float:
        """Compute and waits of the layers, and the bubble that all but zero-bubble schedules leave:
        no step takes less.
        """
        return self.rounds(layout, layout.schedule, layout.virtual_stages) * self.layers_s(layout)

    def rounds(self, layout: Layout, schedule: Schedule, virtual_stages: int) -> float:
        """How often a step with this schedule takes the time of all layers."""
        layers, p = self.workload.model.layers, layout.pipeline
        filling = 0.0
        if schedule not in ZERO_BUBBLE:
            filling = (p - 1) / chunks_as_long(layers, p, virtual_stages)
        return (layout.micro_batches + filling) / spread_over(layers, p)

    @once(*LAYER, "is_accumulating")
    def floor_of_layers_s(self, layout: Layout) -> float:
        """No more than `layers_s`, and known sooner: experts take their FLOPs at the best rate."""
        w = self.workload
        if not w.model.is_mixture:
            return self.layers_s(layout)
        rate = w.pace.products_of(w.cluster.chip) * achieved_flop_per_s(
            w.recipe.products, w.cluster.chip
        )
        passes = 3 + (layout.recompute is Recompute.FULL)
        whole = replace(layout, expert=1, expert_tensor=None)
        pieces = self.without_experts._pieces(whole)
        # What can hide behind experts' work waits for less than it would without that.
        hidden = [
            degree.name
            for degree in IN_LAYERS
            if w.overlap.shares[degree.name] and not degree.is_behind_attention
        ]
        other_s = pieces.layers_s - pieces.waits_for_s(hidden)
        products_s = passes * self._expert_flops(layout) / rate
        return other_s + products_s + self._waits_of_experts_s(layout)

    @once(*WORK)
    def _expert_flops(self, layout: Layout) -> int:
        """FLOPs of a chip's products with experts for a micro-batch, forward, in all layers."""
        w = self.workload
        tokens = layout.tokens(w.sequence)
        return sum(
            2 * kind.count * weight.elements * rows_of(weight, kind, tokens, layout)
            for kind in w.model.kinds
            for weight in layer_on_chip(kind, w.model, layout)
            if weight.group is Group.EXPERTS and weight.uses
        )

    def _waits_of_experts_s(self, layout: Layout) -> float:
        """Seconds of waiting for tokens, in all layers; none where that could hide behind an
        unknown time of work.
        """
        w = self.workload
        (degree,) = (degree for degree in IN_LAYERS if degree.is_of_experts)
        if w.overlap.shares[degree.name]:
            return 0.0
        passes = 1 + share_sent_again(degree, layout)
        waits_s = 0.0
        for number, kind in enumerate(w.model.kinds):
            if isinstance(kind.feed_forward, Experts):
                forward, backward = self._sent_by_experts(layout, number, degree)
                waits_s += kind.count * (passes * forward.value + backward.value)
        return waits_s

    @cached_property
    def without_experts(self) -> "Pricing":
        """Pricing of the same model with the shared part of its mixtures alone."""
        kinds = (
            replace(kind, feed_forward=kind.feed_forward.shared)
            if isinstance(kind.feed_forward, Experts)
            else kind
            for kind in self.workload.model.kinds
        )
        return Pricing(
            replace(self.workload, model=replace(self.workload.model, kinds=tuple(kinds)))
        )

    def states_bytes(self, layout: Layout) -> tuple[int, ...]:
        """What the first and the last stage's chips hold from step to step."""
        return tuple(int(self._states(layout, stage).total.value) for stage in ends(layout))

    @once(*ACTIVATIONS, *GROUPS, "schedule", "virtual_stages", "micro_batches")
    def beside_bytes(self, layout: Layout) -> tuple[int, ...]:
        """What they hold besides: it does not depend on what is shared."""
        outside = int(self._outside(layout).value)
        return tuple(
            outside + self._end_bytes(layout, stage) + self._kept_bytes(layout, stage)
            for stage in ends(layout)
        )

    def fits(self, memory: ChipMemory) -> bool:
        return memory.total.value <= self.workload.cluster.chip.total_memory_bytes

    def memory(self, layout: Layout) -> ChipMemory:
        """Memory of the fullest chip."""
        memories = (
            memory_of_stage(
                layout,
                self._states(layout, stage),
                self._activations(layout, stage),
                self._outside(layout),
                stage,
                self.workload.model.layers,
            )
            for stage in ends(layout)
        )
        return max(memories, key=lambda chip_memory: chip_memory.total.value)

    def parts(self, layout: Layout) -> Parts:
        """Parts of the step's seconds."""
        parts = self._parts(layout)
        streaming = _streaming_s(layout.micro_batches, self._stage(layout).streaming)
        return Parts(parts, total("step", Unit.SECONDS, parts), streaming)

    def _parts(self, layout: Layout) -> dict[str, Quantity]:
        kernels = {
            **self._work(layout),
            "pipeline": self._sends(layout),
            "bubble": self._bubble(layout),
            "data": self._data(layout),
            "optimizer": self._updates(layout).optimizer,
        }
        if layout.offloaded:
            kernels["offload"] = self._offload(layout)
        if self.workload.pace is BEST:
            return kernels
        compute, bubble = kernels["compute"], kernels["bubble"]
        busy = {
            **kernels,
            "stragglers": stragglers_s(slowest_of(layout.chips), compute, bubble),
            "contention": self._contention(layout, kernels),
        }
        return {**busy, "host": self._host(layout, busy)}

    def _offload(self, layout: Layout) -> Quantity:
        """What moving activations to the host and back takes longer than the layers beside it."""
        w, stage = self.workload, self._stage(layout)
        link = w.cluster.chip.host_link
        if link is None or link.bytes_per_s_per_direction is None:
            raise UsageError(f"offload: the link of {w.cluster.chip.name} to its host is unknown.")
        kept = [each.value for _, each in self._layer_activations(layout).layers]
        layers = spread_over(w.model.layers, layout.pipeline)
        depth = w.model.layers / layers
        return offload_s(
            layout.micro_batches * layout.offloaded,
            max(kept),
            link.bytes_per_s_per_direction,
            stage.forward.value / depth,
            stage.backward.value / depth,
        )

    def _contention(self, layout: Layout, kernels: Mapping[str, Quantity]) -> Quantity:
        """Contention of what hides behind compute: of data parallelism, in layers, between
        stages.
        """
        pieces, m = self._pieces(layout), layout.micro_batches
        sent_s = sent_for_states_s(layout, self._updates(layout))
        sent_s += m * pieces.sent_s / layout.pipeline
        exposed_s = kernels["data"].value + m * pieces.waits_s / layout.pipeline
        if layout.pipeline > 1:
            hops = 2 * (layout.pipeline - 1 + m * layout.virtual_stages)
            sent_s += hops * self._hop(layout).seconds.value
            exposed_s += kernels["pipeline"].value
        return contention_s(self.workload.pace.contention, sent_s, exposed_s)

    def _host(self, layout: Layout, kernels: Mapping[str, Quantity]) -> Quantity:
        """What launching takes longer than all of these."""
        w = self.workload
        launch_s = w.pace.launch_of(w.host, layout.implementation)
        busy_s = sum(quantity.value for quantity in kernels.values())
        pieces = self._pieces(layout)
        launches = pieces.launches / layout.pipeline + ROUND_LAUNCHES
        waited_for = pieces.launches_waited_for / layout.pipeline
        if w.host is Host.BLOCKING:
            waited_for = launches
        if w.host is Host.DENSE_GRAPHS:
            launches = waited_for = pieces.expert_launches / layout.pipeline
        rounds = layout.micro_batches + (layout.pipeline - 1) / layout.virtual_stages
        return host_s(launches - waited_for, waited_for, rounds, launch_s, busy_s)

    @once(*WORK, "modules", "is_accumulating")
    def _layer(self, layout: Layout, number: int) -> LayerWork:
        """Work of the kind of layer with this number: compute and communication after every
        split.
        """
        w = self.workload
        kind = w.model.kinds[number]
        sends = {
            degree.name: (self._sent_by_experts if degree.is_of_experts else self._traffic)(
                layout, number, degree
            )
            for degree in IN_LAYERS
        }
        if w.frozen is not None:
            # No gradients of weights are added up.
            layout = replace(layout, micro_batches=1)
        work = layer_work(kind, w.model, layout, w.sequence, self.kernel_times)
        if w.frozen is not None:
            tokens = layout.tokens(w.sequence)
            work = with_adapters(work, kind, w.model, layout, tokens, w.frozen, self.kernel_times)
        return LayerWork(kind, work, Sends.of(sends))

    @once(*(name for name in WORK if name != "expert"))
    def _traffic(self, layout: Layout, number: int, degree: Degree) -> tuple[Quantity, Quantity]:
        """Once however experts are split."""
        return self._sends_in_layer(layout, number, degree)

    @once(*WORK)
    def _sent_by_experts(
        self, layout: Layout, number: int, degree: Degree
    ) -> tuple[Quantity, Quantity]:
        return self._sends_in_layer(layout, number, degree)

    def _sends_in_layer(
        self, layout: Layout, number: int, degree: Degree
    ) -> tuple[Quantity, Quantity]:
        w = self.workload
        kind = w.model.kinds[number]
        return layer_sends_s(
            degree, kind, w.model, layout, w.sequence, self.kernel_times, w.cluster
        )

    @once(*WORK, "is_accumulating")
    def _ends(self, layout: Layout) -> EndsWork:
        w = self.workload
        ends = ends_chip_work(w.model, layout, w.sequence, self.kernel_times, w.cluster)
        if w.frozen is None:
            return ends
        return replace(ends, head=frozen_ends(ends.head), embedding=frozen_ends(ends.embedding))

    @once(*LAYER, "is_accumulating")
    def _pieces(self, layout: Layout) -> Pieces:
        whole = replace(
            layout, expert=1, expert_tensor=None
        )  # as all that is no mixture sees it: computed once
        layers = (
            self._layer(layout if isinstance(kind.feed_forward, Experts) else whole, number)
            for number, kind in enumerate(self.workload.model.kinds)
        )
        return pieces(layers, self._ends(whole), layout, self.workload.overlap)

    @once(*LAYER, "is_accumulating")
    def layers_s(self, layout: Layout) -> float:
        """A micro-batch through all layers, one after the other."""
        return self._pieces(layout).layers_s

    @once(*LAYER, "is_accumulating", "pipeline")
    def _stage(self, layout: Layout) -> StageTime:
        return stage_time(self._pieces(layout), layout.pipeline)

    @once(*LAYER, "micro_batches", "pipeline")
    def _work(self, layout: Layout) -> dict[str, Quantity]:
        """Compute and waits, of all micro-batches one after the other."""
        stage, m = self._stage(layout), of(layout.micro_batches, Unit.COUNT)
        compute = _compute_s(
            m, stage.forward, stage.input_gradients, stage.weight_gradients, stage.ends
        )
        return {"compute": compute, **{part.name: _waits_s(stage, part, m) for part in IN_LAYERS}}

    @once(*LAYER, "micro_batches", "pipeline", "virtual_stages", "chips")
    def _sends(self, layout: Layout) -> Quantity:
        hop_s, hidden = self._hop(layout).seconds, self.workload.overlap.shares["pipeline"]
        if layout.pipeline == 1:
            return hop_s
        m, chunks = layout.micro_batches, layout.virtual_stages
        return _pipeline_network_s(hop_s, layout.pipeline, hidden, m, chunks)

    @once(*LAYER, "is_accumulating", "pipeline", "schedule", "virtual_stages")
    def _bubble(self, layout: Layout) -> Quantity:
        """Other stages' layers, with their waits."""
        if layout.pipeline == 1:
            return derive("bubble", Unit.SECONDS, "0")
        stage = self._stage(layout)
        return bubble_s(
            layout.schedule,
            layout.pipeline,
            forward_s=stage.forward_with_waits,
            input_s=stage.input_with_waits,
            weight_s=stage.weight_gradients,
            virtual_stages=self._chunks(layout),
        )

    def _kept_bytes(self, layout: Layout, stage: int) -> int:
        """`kept_bytes` as a plain number: thousands of layouts are compared, and few shown."""
        each = self._activations(layout, stage).layers.value
        return round(each * self._in_flight(layout, stage))

    @once("schedule", "pipeline", "micro_batches", "virtual_stages")
    def _in_flight(self, layout: Layout, stage: int) -> float:
        return flying_on(layout, stage, self.workload.model.layers).value

    def _chunks(self, layout: Layout) -> float:
        return chunks_as_long(self.workload.model.layers, layout.pipeline, layout.virtual_stages)

    @once(*ACTIVATIONS, "pipeline", "losses_at_once")
    def _end_bytes(self, layout: Layout, stage: int) -> int:
        return int(at_the_end(layout, self._activations(layout, stage)).value)

    @once(*WORK, "has_stages", "chips")
    def _hop(self, layout: Layout) -> Traffic:
        w = self.workload
        return pipeline_traffic(w.model, layout, w.sequence, w.recipe, w.cluster).at_pace(w.pace)

    @once(*WEIGHTS, "implementation")
    def _updates(self, layout: Layout) -> Updates:
        w = self.workload
        return updates(w.model, layout, w.optimizer, w.cluster, self.kernel_times, w.frozen)

    @once(*LAYER, *WEIGHTS, "micro_batches")
    def _data(self, layout: Layout) -> Quantity:
        return data_wait(layout, self._stage(layout), self._updates(layout), self.workload.overlap)

    def _states(self, layout: Layout, stage: int) -> ChipStates:
        # Only autocast's copies of weights depend on recomputation.
        apart = layout.recompute if self.workload.recipe.is_autocast else None
        return self._chip_states(layout, stage, apart)

    @once(*WEIGHTS)
    def _chip_states(self, layout: Layout, stage: int, apart: Recompute | None) -> ChipStates:
        """Once for all layouts that `apart` does not tell apart."""
        w = self.workload
        if w.frozen is not None:
            return states_of(w.model, layout, w.frozen, w.optimizer, w.recipe, stage=stage)
        return chip_states(w.model, layout, w.recipe, w.optimizer, stage=stage)

    @once(*ACTIVATIONS)
    def _layer_activations(self, layout: Layout) -> LayerActivations:
        w = self.workload
        adapter = None if w.frozen is None else w.frozen.adapter
        return layer_activations(w.model, layout, w.sequence, w.recipe, w.loss, adapter)

    @once(*ACTIVATIONS, "pipeline")
    def _activations(self, layout: Layout, stage: int) -> StageActivations:
        return stage_activations(
            self._layer_activations(layout),
            layout.pipeline,
            stage=stage,
            offloaded=layout.offloaded,
        )

    @once(*GROUPS)
    def _outside(self, layout: Layout) -> Quantity:
        return outside(layout, self.workload.cluster.chip)


@closed_form("tokens of a step", Unit.TOKENS)
def _tokens(sequences: Count, sequence: Tokens) -> str:
    return "sequences * sequence"


@closed_form("tokens/s", Unit.TOKEN_PER_S)
def tokens_in_time(tokens: Tokens, step_s: Seconds) -> str:
    """Tokens in a second, of all chips."""
    return "tokens / step_s"


@closed_form("passes over memory", Unit.SECONDS)
def _streaming_s(micro_batches: Count, each: Seconds) -> str:
    return "micro_batches * each"


@closed_form("compute", Unit.SECONDS)
def _compute_s(
    micro_batches: Count,
    forward_s: Seconds,
    input_gradients_s: Seconds,
    weight_gradients_s: Seconds,
    ends_s: Seconds,
) -> str:
    return "micro_batches * (forward_s + input_gradients_s + weight_gradients_s + ends_s)"


def _waits_s(stage: StageTime, degree: Degree, micro_batches: Quantity) -> Quantity:
    terms = {
        "forward_s": stage.waits_forward[degree.name],
        "backward_s": stage.waits_backward[degree.name],
    }
    if degree.name in stage.ends_waits:
        terms["ends_s"] = stage.ends_waits[degree.name]
    formula = f"micro_batches * ({' + '.join(terms)})"
    return derive(degree.network, Unit.SECONDS, formula, micro_batches=micro_batches, **terms)


@closed_form(
    "pipeline network", Unit.SECONDS, note="forward and backward; fill and drain are never hidden"
)
def _pipeline_network_s(
    hop_s: Seconds, stages: Count, hidden: Fraction, micro_batches: Count, virtual_stages: Count
) -> str:
    return "2 * hop_s * ((stages - 1) + (1 - hidden) * micro_batches * virtual_stages)"
