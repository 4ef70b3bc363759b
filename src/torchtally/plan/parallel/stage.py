"""One micro-batch on one stage of a pipeline: seconds of compute, and of exposed communication.

p: stages.  F, B, W: forward, backward to the input, backward to the weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchtally.chips import Cluster
from torchtally.plan.architecture.model import Experts, Layer, Model
from torchtally.plan.closed_form import Seconds, closed_form
from torchtally.plan.parallel.compute import ChipWork, embedding_work, head_work, recompute_s
from torchtally.plan.parallel.degrees import IN_LAYERS, Degree, layer_traffics, share_sent_again
from torchtally.plan.parallel.kernels import KernelTimes
from torchtally.plan.parallel.layout import Layout, spread_over
from torchtally.plan.parallel.overlap import Overlap, exposed_s
from torchtally.plan.quantity import Quantity, derive, of, total_s
from torchtally.units import Unit

ByDegree = Mapping[str, Quantity]
"""Seconds by the name of a degree of parallelism that communicates in layers."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """The stage's layers, and what only the last stage computes: head and loss."""

    forward: Quantity
    """Compute alone, of the stage's layers, as the next two."""
    input_gradients: Quantity
    """With recomputation."""
    weight_gradients: Quantity
    backward: Quantity
    """Both halves, compute alone."""
    forward_with_waits: Quantity
    input_with_waits: Quantity
    ends: Quantity
    """Compute of the head; with one stage, of the embedding too."""
    waits_forward: ByDegree
    """Communication that does not overlap."""
    waits_backward: ByDegree
    ends_waits: ByDegree
    streaming: Quantity
    """The part of the compute, ends included, that runs at memory's speed."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer of one kind: its compute and its exposed communication."""

    kind: Layer
    work: ChipWork
    waits_forward: ByDegree
    waits_backward: ByDegree
    again: Quantity
    """Recomputation of the forward pass."""

    sent: Quantity
    """Communication of both passes, overlapped or not."""

    @property
    def launches(self) -> int:
        """Kernels of both passes, with recomputation."""
        again = (self.work.module_launches or self.work.forward_launches) if self.again.value else 0
        return self.work.forward_launches + self.work.backward_launches + again

    @property
    def expert_launches(self) -> int:
        is_again = self.again.value and not self.work.module_launches
        again = self.work.forward_expert_launches if is_again else 0
        return self.work.forward_expert_launches + self.work.backward_expert_launches + again

    @property
    def seconds(self) -> float:
        work = self.work
        parts = (work.forward, work.input_gradients, work.weight_gradients, self.again,
                 *self.waits_forward.values(), *self.waits_backward.values())  # fmt: skip
        return float(sum(quantity.value for quantity in parts))


@dataclass(frozen=True, slots=True)
class Pieces:
    """What stages are made of: the same for any number of them."""

    layers: tuple[LayerTime, ...]
    """One of each kind."""
    head: ChipWork
    embedding: ChipWork
    ends_waits: ByDegree
    """Seconds that embedding and head wait for communication."""

    @property
    def launches(self) -> int:
        """Kernels of a micro-batch in all layers."""
        return sum(layer.kind.count * layer.launches for layer in self.layers)

    @property
    def expert_launches(self) -> int:
        """Those whose sizes routers decide."""
        return sum(layer.kind.count * layer.expert_launches for layer in self.layers)

    @property
    def launches_waited_for(self) -> int:
        """Those in layers of experts."""
        return sum(
            layer.kind.count * layer.launches
            for layer in self.layers
            if isinstance(layer.kind.feed_forward, Experts)
        )

    @property
    def sent_s(self) -> float:
        """Seconds of communication of a micro-batch in all layers, overlapped or not."""
        return float(sum(layer.kind.count * layer.sent.value for layer in self.layers))

    @property
    def waits_s(self) -> float:
        """What of it shows."""
        return self.waits_for_s([degree.name for degree in IN_LAYERS])

    def waits_for_s(self, degrees: Sequence[str]) -> float:
        """What of these degrees, by their names, shows."""
        return float(
            sum(
                layer.kind.count * waits[name].value
                for layer in self.layers
                for waits in (layer.waits_forward, layer.waits_backward)
                for name in degrees
            )
        )

    @property
    def layers_s(self) -> float:
        """Seconds of all layers one after the other, with their waits: no schedule hides it."""
        return float(sum(layer.kind.count * layer.seconds for layer in self.layers))


@dataclass(frozen=True, slots=True)
class Sends:
    """Seconds that one layer sends in one pass, overlapped or not."""

    forward: ByDegree
    backward: ByDegree
    """Without recomputation."""

    @classmethod
    def of(cls, both: Mapping[str, tuple[Quantity, Quantity]]) -> "Sends":
        """Sends of both passes by degree."""
        forward, backward = ({name: pair[n] for name, pair in both.items()} for n in (0, 1))
        return cls(forward, backward)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """A micro-batch through one layer of one kind: compute and communication."""

    kind: Layer
    work: ChipWork
    sends: Sends


@dataclass(frozen=True, slots=True)
class EndsWork:
    """A micro-batch through the embedding and the head."""

    head: ChipWork
    embedding: ChipWork
    sends: ByDegree
    """Seconds that both send."""


def layer_sends_s(
    degree: Degree,
    kind: Layer,
    model: Model,
    layout: Layout,
    sequence: int,
    work: KernelTimes,
    cluster: Cluster,
) -> tuple[Quantity, Quantity]:
    """Seconds that one layer sends for this degree, forward and backward, overlapped or not."""
    forward, backward = layer_traffics(degree, kind, model, layout, sequence, work.recipe, cluster)
    return forward.at_pace(work.pace).seconds, backward.at_pace(work.pace).seconds


def ends_chip_work(
    model: Model, layout: Layout, sequence: int, work: KernelTimes, cluster: Cluster
) -> EndsWork:
    """Work of one chip that has both ends."""
    return EndsWork(
        head_work(model, layout, sequence, work),
        embedding_work(model, layout, sequence, work),
        {
            degree.name: degree.ends_traffic(model, layout, sequence, work.recipe, cluster)
            .at_pace(work.pace)
            .seconds
            for degree in IN_LAYERS
            if degree.ends_traffic
        },
    )


def pieces(layers: Iterable[LayerWork], ends: EndsWork, layout: Layout, overlap: Overlap) -> Pieces:
    """Pieces with recomputation, and the communication that does not overlap."""
    return Pieces(
        tuple(
            LayerTime(
                layer.kind,
                layer.work,
                *_waits(layer.work, layer.sends, layout, overlap),
                recompute_s(layer.work, layout),
                _sent_s(layer.sends, layout),
            )
            for layer in layers
        ),
        ends.head,
        ends.embedding,
        {
            name: exposed_s("embedding and head", sent, of(0.0, Unit.SECONDS), overlap.shares[name])
            for name, sent in ends.sends.items()
        },
    )


def stage_time(pieces: Pieces, stages: int) -> StageTime:
    """Layers of every kind are spread evenly over the stages."""
    works = [layer.work for layer in pieces.layers]
    kinds = tuple(layer.kind for layer in pieces.layers)

    ends = {"head": pieces.head}
    if stages == 1:
        ends["embedding"] = pieces.embedding
    halves = {}
    for word, work in ends.items():
        halves[f"{word}_forward"] = work.forward
        halves[f"{word}_backward"] = work.input_gradients
        halves[f"{word}_weights"] = work.weight_gradients
    streaming = {"layers": _spread("passes", kinds, [work.streaming for work in works], stages)}
    streaming |= {word: ending.streaming for word, ending in ends.items()}
    forward = _spread("forward", kinds, [work.forward for work in works], stages)
    inputs = _spread(
        "backward to the input", kinds, [_backward(layer) for layer in pieces.layers], stages
    )
    weights = _spread(
        "backward to the weights", kinds, [work.weight_gradients for work in works], stages
    )
    there = _spread_waits([layer.waits_forward for layer in pieces.layers], kinds, stages)
    back = _spread_waits([layer.waits_backward for layer in pieces.layers], kinds, stages)
    return StageTime(
        forward=forward,
        input_gradients=inputs,
        weight_gradients=weights,
        backward=total_s("backward", input=inputs, weights=weights),
        forward_with_waits=total_s("forward", work=forward, **there),
        input_with_waits=total_s("backward to the input", work=inputs, **back),
        ends=_beside_layers(pieces, total_s("head and embedding", **halves), stages),
        waits_forward=there,
        waits_backward=back,
        ends_waits=pieces.ends_waits,
        streaming=total_s("passes over memory", **streaming),
    )


def _beside_layers(pieces: Pieces, ends: Quantity, stages: int) -> Quantity:
    """What the ends take of the slowest stage. Layers that do not divide leave a place free, and it
    is next to the head (Megatron-LM, `--account-for-loss-in-pipeline-split`; Llama 3's 126 layers,
    arXiv:2407.21783, section 3.3.2): the last stage has it instead of a layer.
    """
    depth = sum(layer.kind.count for layer in pieces.layers)
    if depth % stages == 0:
        return ends
    return _longer_than_a_layer_s(ends, pieces.layers_s / depth)


@closed_form("head, over a layer", Unit.SECONDS)
def _longer_than_a_layer_s(ends_s: Seconds, layer_s: Seconds) -> str:
    return "max(0, ends_s - layer_s)"


def _backward(layer: LayerTime) -> Quantity:
    work, again = layer.work.input_gradients, layer.again
    return total_s("backward to the input", backward=work, recomputation=again)


def _waits(
    work: ChipWork, sends: Sends, layout: Layout, overlap: Overlap
) -> tuple[ByDegree, ByDegree]:
    """Waits of one layer, forward and backward."""
    forward, backward = {}, {}
    for degree in IN_LAYERS:
        there, back = work.forward, work.input_gradients
        if degree.is_behind_attention:
            there, back = work.attention, work.attention_backward
        name, share = f"{degree.name} parallelism", overlap.shares[degree.name]
        sent, sent_back = sends.forward[degree.name], sends.backward[degree.name]
        if again := share_sent_again(degree, layout):
            recompute = of(again * sent.value, Unit.SECONDS)
            sent_back = total_s(
                "backward and recomputation", backward=sent_back, recompute=recompute
            )
        forward[degree.name] = exposed_s(name, sent, there, share)
        backward[degree.name] = exposed_s(f"{name}, backward", sent_back, back, share)
    return forward, backward


def _sent_s(sends: Sends, layout: Layout) -> Quantity:
    """Seconds of sends, with what recomputation sends again."""
    forward = sum(
        (1 + share_sent_again(degree, layout)) * sends.forward[degree.name].value
        for degree in IN_LAYERS
    )
    backward = sum(quantity.value for quantity in sends.backward.values())
    return of(forward + backward, Unit.SECONDS)


def _spread(name: str, kinds: tuple[Layer, ...], each: list[Quantity], stages: int) -> Quantity:
    if not any(quantity.value for quantity in each):
        return derive(name, Unit.SECONDS, "0")
    depth = sum(kind.count for kind in kinds)
    terms = {"stages": of(spread_over(depth, stages), Unit.NUMBER)}
    sums = []
    for n, (kind, one) in enumerate(zip(kinds, each, strict=True)):
        terms |= {f"layers_{n}": of(kind.count, Unit.COUNT), f"each_{n}_s": one}
        sums.append(f"layers_{n} * each_{n}_s")
    return derive(name, Unit.SECONDS, f"({' + '.join(sums)}) / stages", **terms)


def _spread_waits(each: list[ByDegree], kinds: tuple[Layer, ...], stages: int) -> ByDegree:
    return {
        degree.name: _spread(
            f"{degree.name} parallelism", kinds, [waits[degree.name] for waits in each], stages
        )
        for degree in IN_LAYERS
    }
