"""The steps of many layouts of one workload, with all that they have in common computed once.

A layout's step is a sum of parts, and each part depends on a few of its numbers: what one layer
takes does not depend on the pipeline, what a chip holds not on the schedule. So thousands of
layouts cost little more than their parts.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from torchtally.plan import training
from torchtally.plan.flops import token_flops
from torchtally.plan.parallel.chip_memory import (
    KEPT,
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
from torchtally.plan.parallel.communication import Network, Transfer, network
from torchtally.plan.parallel.degrees import DEGREES, IN_LAYERS, Degree
from torchtally.plan.parallel.layout import Layout, Schedule
from torchtally.plan.parallel.pipeline import bubble_s
from torchtally.plan.parallel.plain import plain_number
from torchtally.plan.parallel.stage import LayerWorks, Pieces, StageTime, pieces, stage_time, works
from torchtally.plan.parallel.states import ChipStates, chip_states
from torchtally.plan.parallel.step import Parts, Step, Workload
from torchtally.plan.parallel.traffic import pipeline_traffic
from torchtally.plan.parallel.updates import Updates, data_wait, updates
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.units import Unit

T = TypeVar("T")


def step(workload: Workload, layout: Layout) -> Step:
    """A training step. The layout is taken as it is: see `invalidities`."""
    return Pricing(workload).step(layout)


class Pricing:
    """The steps of many layouts of one workload: what they have in common is computed once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.network: Network = network(workload.cluster)
        self._values: dict[tuple[Any, ...], Any] = {}

    def step(self, layout: Layout) -> Step:
        """All of it."""
        part, parts, memory = self.workload, self.parts(layout), self.memory(layout)
        flops = token_flops(
            part.model, part.sequence, attention=part.attention, recompute=layout.recompute
        )
        tokens = derive(
            "tokens of a step",
            Unit.TOKENS,
            "sequences * sequence",
            sequences=of(layout.global_batch, Unit.COUNT),
            sequence=of(part.sequence, Unit.TOKENS),
        )
        speed = derive(
            "tokens/s", Unit.TOKEN_PER_S, "tokens / step_s", tokens=tokens, step_s=parts.total
        )
        peak = part.cluster.chip.peak_flop_per_s(part.recipe.products)
        chips = layout.chips
        return Step(
            layout,
            parts.total,
            parts,
            memory,
            self.fits(memory),
            tokens,
            speed,
            training.mfu(speed, flops.model, chips, peak),
            training.mfu(speed, flops.hardware, chips, peak).with_name("HFU"),
            parts.largest,
            part.overlap.assumptions(),
        )

    def step_s(self, layout: Layout) -> float:
        """Seconds of a step alone: the sum of its parts."""
        return float(sum(quantity.value for quantity in self._parts(layout).values()))

    def least_s(self, layout: Layout) -> float:
        """ChipWork and waits of the layers alone: no step takes less."""
        a_stage_s = self._layers_s(layout) / layout.pipeline
        return layout.micro_batches * a_stage_s

    def states_bytes(self, layout: Layout) -> tuple[int, ...]:
        """What the first and the last stage's chips hold from step to step."""
        return tuple(int(self._states(layout, stage).total.value) for stage in ends(layout))

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
        """Of the fullest chip."""
        beside = self._outside(layout)
        return max(
            (
                memory_of_stage(
                    layout,
                    self._states(layout, stage),
                    self._activations(layout, stage),
                    beside,
                    stage,
                )
                for stage in ends(layout)
            ),
            key=lambda chip_memory: chip_memory.total.value,
        )

    def parts(self, layout: Layout) -> Parts:
        """Where the step's seconds go."""
        parts = self._parts(layout)
        streaming = derive(
            "passes over memory",
            Unit.SECONDS,
            "micro_batches * each",
            micro_batches=of(layout.micro_batches, Unit.COUNT),
            each=self._stage(layout).streaming,
        )
        return Parts(parts, total("step", Unit.SECONDS, parts), streaming)

    def _parts(self, layout: Layout) -> dict[str, Quantity]:
        return {
            **self._work(layout),
            "pipeline": self._sends(layout),
            "bubble": self._bubble(layout),
            "data": self._data(layout),
            "optimizer": self._updates(layout).optimizer,
        }

    # Each is computed once for all layouts that agree on what it depends on.

    def _works(self, layout: Layout) -> LayerWorks:
        w = self.workload
        return self._once(
            ("works", *_of_work(layout), layout.micro_batches > 1),
            lambda: works(w.model, layout, w.sequence, w.recipe, w.cluster.chip, self.network),
        )

    def _pieces(self, layout: Layout) -> Pieces:
        return self._once(
            ("pieces", *_of_layer(layout), layout.micro_batches > 1),
            lambda: pieces(self._works(layout), layout, self.workload.overlap),
        )

    def _layers_s(self, layout: Layout) -> float:
        """A micro-batch through all layers, one after the other."""
        return self._once(
            ("layers", *_of_layer(layout), layout.micro_batches > 1),
            lambda: self._pieces(layout).layers_s,
        )

    def _stage(self, layout: Layout) -> StageTime:
        return self._once(
            ("stage", layout.pipeline, *_of_layer(layout), layout.micro_batches > 1),
            lambda: stage_time(self._pieces(layout), layout.pipeline),
        )

    def _work(self, layout: Layout) -> dict[str, Quantity]:
        """ChipWork and waits, of all micro-batches one after the other."""
        return self._once(
            ("work", layout.pipeline, layout.micro_batches, *_of_layer(layout)),
            lambda: _all_micro_batches(self._stage(layout), of(layout.micro_batches, Unit.COUNT)),
        )

    def _sends(self, layout: Layout) -> Quantity:
        return self._once(
            (
                "sends",
                layout.pipeline,
                layout.virtual_stages,
                layout.micro_batches,
                *_of_layer(layout),
                layout.chips,
            ),
            lambda: _sends(
                layout, self._hop(layout).seconds, self.workload.overlap.shares["pipeline"]
            ),
        )

    def _bubble(self, layout: Layout) -> Quantity:
        return self._once(
            ("bubble", layout.pipeline, layout.schedule, layout.virtual_stages, *_of_layer(layout),
             layout.micro_batches > 1),
            lambda: _bubble(layout, self._stage(layout)),
        )  # fmt: skip

    def _kept_bytes(self, layout: Layout, stage: int) -> int:
        """Of all micro-batches in flight."""
        flying = self._once(
            (
                "flying",
                stage,
                layout.schedule,
                layout.pipeline,
                layout.micro_batches,
                layout.virtual_stages,
            ),
            lambda: flying_on(layout, stage).value,
        )
        return round(_KEPT_BYTES(self._activations(layout, stage).layers.value, flying))

    def _end_bytes(self, layout: Layout, stage: int) -> int:
        times = layout.micro_batches if layout.schedule is Schedule.GPIPE else 1
        return self._once(
            ("end", stage, times, layout.pipeline, *_of_layer(layout)),
            lambda: int(at_the_end(layout, self._activations(layout, stage)).value),
        )

    def _hop(self, layout: Layout) -> Transfer:
        w = self.workload
        return self._once(
            ("hop", layout.pipeline > 1, layout.chips, *_of_work(layout)),
            lambda: pipeline_traffic(w.model, layout, w.sequence, w.recipe, self.network),
        )

    def _updates(self, layout: Layout) -> Updates:
        w = self.workload
        return self._once(
            ("updates", *_of_weights(layout), layout.implementation),
            lambda: updates(w.model, layout, w.recipe, w.optimizer, w.cluster.chip, self.network),
        )

    def _data(self, layout: Layout) -> Quantity:
        return self._once(
            ("data", *_of_layer(layout), *_of_weights(layout), layout.micro_batches),
            lambda: data_wait(
                layout, self._stage(layout), self._updates(layout), self.workload.overlap
            ),
        )

    def _states(self, layout: Layout, stage: int) -> ChipStates:
        w = self.workload
        return self._once(
            ("states", *_of_weights(layout), w.recipe.is_autocast and layout.recompute, stage),
            lambda: chip_states(w.model, layout, w.recipe, w.optimizer, stage=stage),
        )

    def _layer_activations(self, layout: Layout) -> LayerActivations:
        w = self.workload
        return self._once(
            ("layer activations", *_of_layer(layout)),
            lambda: layer_activations(w.model, layout, w.sequence, w.recipe),
        )

    def _activations(self, layout: Layout, stage: int) -> StageActivations:
        return self._once(
            ("activations", stage, layout.pipeline, *_of_layer(layout)),
            lambda: stage_activations(
                self._layer_activations(layout), layout.pipeline, stage=stage
            ),
        )

    def _outside(self, layout: Layout) -> Quantity:
        return self._once(
            ("outside", *_of_mesh(layout)),
            lambda: outside(layout, self.workload.cluster.chip),
        )

    def _once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        value: T | None = self._values.get(key)
        if value is None:
            value = self._values[key] = make()
        return value


_KEPT_BYTES = plain_number(KEPT, "per_micro_batch_bytes", "in_flight")

_IN_LAYERS = tuple(degree.name for degree in IN_LAYERS)
_of_work = attrgetter(
    *_IN_LAYERS, "is_sequence_parallel", "micro_batch", "kernel", "implementation"
)
"""What a chip's compute for one micro-batch in a layer depends on, but for recomputation."""

_of_layer = attrgetter(
    *_IN_LAYERS, "is_sequence_parallel", "micro_batch", "recompute", "kernel", "implementation"
)
"""What one micro-batch through a layer depends on, besides the workload."""

_of_mesh = attrgetter(*(degree.name for degree in DEGREES))
_of_weights = attrgetter(*(degree.name for degree in DEGREES), "shard", "shard_group")
"""What a chip's weights and their groups depend on."""


def _compute(stage: StageTime, micro_batches: Quantity) -> Quantity:
    return derive(
        "compute",
        Unit.SECONDS,
        "micro_batches * (forward_s + input_gradients_s + weight_gradients_s + ends_s)",
        micro_batches=micro_batches,
        forward_s=stage.forward,
        input_gradients_s=stage.input_gradients,
        weight_gradients_s=stage.weight_gradients,
        ends_s=stage.ends,
    )


def _waiting(stage: StageTime, degree: Degree, micro_batches: Quantity) -> Quantity:
    terms = {
        "forward_s": stage.waits_forward[degree.name],
        "backward_s": stage.waits_backward[degree.name],
    }
    if degree.name in stage.ends_waits:
        terms["ends_s"] = stage.ends_waits[degree.name]
    formula = f"micro_batches * ({' + '.join(terms)})"
    return derive(degree.network, Unit.SECONDS, formula, micro_batches=micro_batches, **terms)


def _all_micro_batches(stage: StageTime, m: Quantity) -> dict[str, Quantity]:
    return {
        "compute": _compute(stage, m),
        **{degree.name: _waiting(stage, degree, m) for degree in IN_LAYERS},
    }


def _sends(layout: Layout, hop: Quantity, hidden: float) -> Quantity:
    if layout.pipeline == 1:
        return hop
    return derive(
        "pipeline network",
        Unit.SECONDS,
        "2 * hop_s * ((stages - 1) + (1 - hidden) * micro_batches * virtual_stages)",
        "",
        "forward and backward; filling and draining always show",
        hop_s=hop,
        stages=of(layout.pipeline, Unit.COUNT),
        hidden=of(hidden, Unit.FRACTION),
        micro_batches=of(layout.micro_batches, Unit.COUNT),
        virtual_stages=of(layout.virtual_stages, Unit.COUNT),
    )


def _bubble(layout: Layout, stage: StageTime) -> Quantity:
    """Other stages' layers, with their waits."""
    if layout.pipeline == 1:
        return derive("bubble", Unit.SECONDS, "0")
    return bubble_s(
        layout.schedule,
        layout.pipeline,
        forward_s=stage.forward_with_waits,
        input_s=stage.input_with_waits,
        weight_s=stage.weight_gradients,
        virtual_stages=layout.virtual_stages,
    )
