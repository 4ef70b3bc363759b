"""The degrees of parallelism, one row each: its names, its limits, and what it divides and sends.

Searches, steps, tables and legends go over these rows. A new degree is a row here, a field of
`Layout`, its collectives in `traffic.py`, and what it splits: weights in `shards.py`, activations
in `activations/setting.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from torchtally.chips import Cluster
from torchtally.plan.activations.modules import MODULES
from torchtally.plan.architecture.model import Experts, FeedForward, Layer, Model, SelfAttention
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.communication import Traffic
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.traffic import (
    context_traffic,
    context_traffic_backward,
    expert_traffic,
    outer_tensor_traffic,
    tensor_traffic,
)


def _nothing(layout: Layout) -> str:
    return ""


def _no_choice(mesh: Layout, model: Model, most: int) -> Iterator[Layout]:
    yield mesh


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Degree:
    """One kind of parallelism."""

    name: str
    """The field of `Layout` that holds it, and its key in every mapping by degree."""
    short: str
    words: str
    """As an adjective: "tensor-parallel"."""
    legend: str
    """What `short` and `suffix` mean."""
    details: Callable[[Layout], str] = _nothing
    """In words, behind "tp 8": " with sp"."""
    suffix: Callable[[Layout], str] = _nothing
    """In few letters, behind "dp8": "/z3"."""
    ranks: Callable[[Layout], int]
    """Chips of one communication group."""
    limits: Callable[[Layout, Model, int], Iterator[str]]
    """Why a layout, model and sequence length do not go together."""
    meshes: Callable[[Layout, Model, int], Iterator[Layout]] = _no_choice
    """The layouts that a search tries: each takes its chips out of `data`. The last argument is how
    many chips tensor parallelism may span."""
    layer_traffic: Callable[..., Traffic] | None = None
    """What every layer sends forward in each micro-batch; None: sends outside of layers."""
    layer_traffic_backward: Callable[..., Traffic] | None = None
    """The same backward, where it is not what the forward pass sends."""
    ends_traffic: Callable[..., Traffic] | None = None
    """What the embedding and the head send, forward and backward."""
    is_of_experts: bool = False
    """What others send in layers is the same however many chips experts are split among."""
    is_behind_attention: bool = False
    """Overlaps with attention alone, not with all of the layer's compute."""
    overlap: float
    """The share of that compute behind which communication hides unless the user says otherwise.
    0: none, they take turns. 1: all, and only communication that takes longer shows."""
    overlapped: str
    """What overlaps, for the list of assumptions."""
    overlap_note: str = ""

    @property
    def network(self) -> str:
        """Its share of a step's time: "tensor-parallel network"."""
        return f"{self.words} network"


def _tensor_limits(layout: Layout, model: Model, sequence: int) -> Iterator[str]:
    """Limits of a tensor-parallel degree. Across nodes it is possible, and slow. Megatron-LM pads a
    vocabulary that does not divide.
    """
    for kind in model.kinds:
        attention, block = kind.attention, kind.feed_forward
        for parts in kind.recurrence.split if kind.recurrence is not None else ():
            if parts % layout.tensor:
                yield f"{parts} heads or groups of a recurrence do not divide by tp {layout.tensor}"
        if attention is not None and attention.heads % layout.tensor:
            yield f"{attention.heads} heads do not divide by tp {layout.tensor}"
        if isinstance(attention, SelfAttention) and attention.kv_heads % layout.tensor:
            yield f"{attention.kv_heads} KV heads do not divide by tp {layout.tensor}"
        if isinstance(block, FeedForward) and block.width % layout.tensor:
            yield f"feed-forward width {block.width} does not divide by tp {layout.tensor}"
        if isinstance(block, Experts) and block.shared_width % layout.tensor:
            yield f"shared expert width {block.shared_width} does not divide by tp {layout.tensor}"
    if layout.is_sequence_parallel and (sequence // layout.context) % layout.tensor:
        yield f"{sequence // layout.context} tokens do not divide by tp {layout.tensor} for sp"


def _pipeline_limits(layout: Layout, model: Model, sequence: int) -> Iterator[str]:
    chunks = layout.virtual_stages
    # The first chunk may have the embedding alone, and the last one the head, as Megatron-LM's
    # `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split` do.
    if model.layers + 2 * (chunks > 1) < layout.pipeline * chunks:
        yield f"{model.layers} layers are fewer than pp {layout.pipeline}{_chunks(layout)}"
    is_interleaved = layout.schedule is Schedule.INTERLEAVED
    if is_interleaved != (layout.virtual_stages > 1):
        yield f"schedule {layout.schedule} with {layout.virtual_stages} chunks of layers per chip"
    if is_interleaved and layout.pipeline == 1:
        yield "an interleaved schedule needs more than one stage"
    if is_interleaved and layout.micro_batches % layout.pipeline:
        yield (
            f"an interleaved schedule: {layout.micro_batches} micro-batches do not divide by pp "
            f"{layout.pipeline}"
        )


def _context_limits(layout: Layout, model: Model, sequence: int) -> Iterator[str]:
    if layout.context > 1 and any(kind.recurrence is not None for kind in model.kinds):
        yield f"cp {layout.context}: chips that pass on a recurrence's state are not planned"
    if layout.context > 1 and sequence % (2 * layout.context):
        # Each chip gets a piece of the front and one of the back, which balances causal attention.
        yield (
            f"{sequence} tokens do not divide into {2 * layout.context} pieces for cp "
            f"{layout.context}"
        )


def _expert_limits(layout: Layout, model: Model, sequence: int) -> Iterator[str]:
    if not model.is_mixture and (layout.expert > 1 or layout.expert_tensor):
        yield f"ep {layout.expert} needs a mixture of experts"
    for block in _mixtures(model):
        if block.experts % layout.expert:
            yield f"{block.experts} experts do not divide by ep {layout.expert}"
        if block.width % layout.expert_split:
            name = "tp" if layout.expert_tensor is None else "etp"
            yield f"expert width {block.width} does not divide by {name} {layout.expert_split}"
    yield from _expert_tensor_limits(layout)
    chips = layout.replicas * layout.tensor // layout.expert_split
    if chips % layout.expert:
        among = f"the {layout.replicas} chips of dp and cp"
        if layout.expert_tensor is not None:
            among = f"the {chips} chips of dp, cp and tp over etp {layout.expert_tensor}"
        yield (
            f"ep {layout.expert} does not divide {among}, among which experts are spread: give ep "
            f"{gcd(layout.expert, chips)}, or more dp"
        )


def _expert_tensor_limits(layout: Layout) -> Iterator[str]:
    """Experts over chips of tensor parallelism take tokens that those do not all have."""
    if layout.tensor % layout.expert_split:
        yield f"etp {layout.expert_split} does not divide tp {layout.tensor}"
    elif layout.expert_split < layout.tensor and not layout.is_sequence_parallel:
        yield f"etp {layout.expert_split} below tp {layout.tensor} needs sp"


def _data_limits(layout: Layout, model: Model, sequence: int) -> Iterator[str]:
    if layout.shard_group is None:
        return
    if layout.shard is Sharding.NONE:
        yield f"groups of {layout.shard_group} without sharding"
    chips = layout.shard_group * layout.tensor
    if layout.replicas % layout.shard_group or chips % layout.expert_chips:
        yield (
            f"groups of {layout.shard_group} for {layout.shard} do not divide the "
            f"{layout.replicas} chips of dp and cp, or not into ep {layout.expert}"
        )


def _mixtures(model: Model) -> list[Experts]:
    blocks = (kind.feed_forward for kind in model.kinds)
    return [block for block in blocks if isinstance(block, Experts)]


def _tensor_meshes(mesh: Layout, model: Model, most: int) -> Iterator[Layout]:
    for n in divisors(mesh.data):
        if n <= most:
            yield replace(mesh, tensor=n, is_sequence_parallel=n > 1, data=mesh.data // n)


def _pipeline_meshes(mesh: Layout, model: Model, most: int) -> Iterator[Layout]:
    return (replace(mesh, pipeline=n, data=mesh.data // n) for n in divisors(mesh.data))


def _context_meshes(mesh: Layout, model: Model, most: int) -> Iterator[Layout]:
    return (replace(mesh, context=n, data=mesh.data // n) for n in divisors(mesh.data))


def _expert_meshes(mesh: Layout, model: Model, most: int) -> Iterator[Layout]:
    """Each expert split as all else is, or whole."""
    counts = [block.experts for block in _mixtures(model)]
    most = gcd(*counts)  # 0: no mixture
    for each in (None, 1) if mesh.tensor > 1 and most else (None,):
        chips = mesh.replicas if each is None else mesh.replicas * mesh.tensor
        for n in divisors(gcd(chips, most) if most else 1):
            yield replace(mesh, expert=n, expert_tensor=each)


def divisors(number: int) -> list[int]:
    """Smallest first."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _data_details(layout: Layout) -> str:
    group = f" in groups of {layout.shard_group}" if layout.shard_group else ""
    return "" if layout.shard is Sharding.NONE else f" {layout.shard}{group}"


def _data_suffix(layout: Layout) -> str:
    level = "" if layout.shard is Sharding.NONE else f"/z{layout.shard.stage}"
    return level + (f":{layout.shard_group}" if layout.shard_group else "")


def _tensor_details(layout: Layout) -> str:
    return " with sp" if layout.is_sequence_parallel else ""


def _expert_details(layout: Layout) -> str:
    is_folded = layout.expert_split != layout.tensor
    return f" etp {layout.expert_split}" if is_folded else ""


def _expert_suffix(layout: Layout) -> str:
    return _expert_details(layout).replace(" ", "/", 1).replace(" ", "")


def _pipeline_details(layout: Layout) -> str:
    return f" {layout.schedule}{' ' if layout.virtual_stages > 1 else ''}{_chunks(layout)}"


def _pipeline_suffix(layout: Layout) -> str:
    words = {Schedule.GPIPE: "/gpipe", Schedule.ZB_H1: "/zb1", Schedule.ZB_H2: "/zb2"}
    return _chunks(layout) + words.get(layout.schedule, "")


def _chunks(layout: Layout) -> str:
    return f"x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""


DATA = Degree(
    name="data",
    short="dp",
    words="data-parallel",
    legend="data parallel, /z1 to /z3 ZeRO stages (z3: FSDP; :8 in groups of 8)",
    details=_data_details,
    suffix=_data_suffix,
    ranks=lambda layout: layout.replicas,
    limits=_data_limits,
    # Gradients of one layer travel during the backward pass of the layer before it, and so do
    # sharded parameters (PyTorch FSDP, arXiv 2304.11277, section 3.3). One layer's always shows.
    overlap=1.0,
    overlapped="gradients and gathered parameters",
    overlap_note=" (one layer's is never hidden)",
)
DEGREES = (
    DATA,
    Degree(
        name="tensor",
        short="tp",
        words="tensor-parallel",
        legend="tensor and sequence parallel",
        details=_tensor_details,
        ranks=lambda layout: layout.tensor,
        limits=_tensor_limits,
        meshes=_tensor_meshes,
        layer_traffic=tensor_traffic,
        ends_traffic=outer_tensor_traffic,
        # The next product needs the sum: Megatron-LM overlaps nothing by default (it can split
        # products, `--tp-comm-overlap`, where Transformer Engine has the kernels).
        overlap=0.0,
        overlapped="tensor-parallel all-reduce",
    ),
    Degree(
        name="pipeline",
        short="pp",
        words="pipeline",
        legend="pipeline stages, x2 with 2 chunks each, /zb1 and /zb2 zero-bubble",
        details=_pipeline_details,
        suffix=_pipeline_suffix,
        ranks=lambda layout: layout.pipeline,
        limits=_pipeline_limits,
        meshes=_pipeline_meshes,
        # A stage sends while it works on the next micro-batch. The first activations to arrive and
        # the last gradients to come back have nothing to overlap with.
        overlap=1.0,
        overlapped="sends between stages",
        overlap_note=" (fill and drain are never hidden)",
    ),
    Degree(
        name="context",
        short="cp",
        words="context-parallel",
        legend="context parallel",
        ranks=lambda layout: layout.context,
        limits=_context_limits,
        meshes=_context_meshes,
        layer_traffic=context_traffic,
        layer_traffic_backward=context_traffic_backward,
        # The next block of keys travels while attention works on this one: Liu et al. 2023, arXiv
        # 2310.01889, section 3.
        is_behind_attention=True,
        overlap=1.0,
        overlapped="ring attention",
    ),
    Degree(
        name="expert",
        short="ep",
        words="expert-parallel",
        legend="expert parallel, /etp1 across tp, each expert on one chip",
        details=_expert_details,
        suffix=_expert_suffix,
        ranks=lambda layout: layout.expert,
        limits=_expert_limits,
        meshes=_expert_meshes,
        layer_traffic=expert_traffic,
        is_of_experts=True,
        # Experts wait for their tokens. DeepSeek-V3 overlaps it with another batch (DualPipe).
        overlap=0.0,
        overlapped="expert all-to-all",
    ),
)
"""In the order of a layout's name."""
IN_LAYERS = tuple(degree for degree in DEGREES if degree.layer_traffic)
"""Those that communicate in every layer of every micro-batch."""


def layer_traffics(degree: Degree, kind: Layer, *workload: Any) -> tuple[Traffic, Traffic]:
    """What one layer sends in a pass of a micro-batch: forward, and backward."""
    assert degree.layer_traffic is not None, degree.name
    forward = degree.layer_traffic(kind, *workload)
    backward = degree.layer_traffic_backward
    return forward, forward if backward is None else backward(kind, *workload)


def share_sent_again(degree: Degree, layout: Layout) -> float:
    """Share of what a layer sends in the forward pass that recomputation sends again."""
    if layout.recompute is Recompute.FULL:
        return 1.0
    if layout.recompute is Recompute.OPERATORS and degree.name == "tensor":
        return 0.5 if layout.is_sequence_parallel else 1.0  # reduce-scatters' results are kept
    return 0.0


def layout_text(layout: Layout) -> str:
    """A layout in words, without degrees of 1: "dp 16 zero-1, tp 8, pp 8 interleaved x5"."""
    return ", ".join(_words(layout))


def _words(layout: Layout) -> Iterator[str]:
    for degree in DEGREES:
        if degree.ranks(layout) > 1 or degree.suffix(layout):
            yield f"{degree.short} {getattr(layout, degree.name)}{degree.details(layout)}"
    yield f"micro-batch {layout.micro_batch} x{layout.micro_batches}"
    if layout.recompute is not Recompute.NONE:
        yield f"recompute {layout.recompute}"
    if layout.modules:
        yield f"recompute {' '.join(layout.modules)}"
    if layout.offloaded:
        yield f"offload {layout.offloaded}"


def layout_in_short(layout: Layout) -> str:
    """A layout in few letters: "dp128/z2 tp2 pp2x40 cp2 mb 1x8"."""
    return " ".join(_letters(layout))


def _letters(layout: Layout) -> Iterator[str]:
    for degree in DEGREES:
        if degree is DATA or degree.ranks(layout) > 1 or degree.suffix(layout):
            yield f"{degree.short}{getattr(layout, degree.name)}{degree.suffix(layout)}"
    yield f"mb {layout.micro_batch}x{layout.micro_batches}"
    if layout.recompute is not Recompute.NONE:
        yield str(layout.recompute)
    yield from layout.modules
    if layout.offloaded:
        yield f"offload {layout.offloaded}"


LEGEND = "; ".join(
    (
        *(f"{degree.short}: {degree.legend}" for degree in DEGREES),
        "mb 1x8: 8 micro-batches of 1",
        "full: full activation recomputation.",
    )
)
"""What `layout_in_short` abbreviates."""


def invalidities(
    layout: Layout,
    model: Model,
    cluster: Cluster,
    *,
    sequence: int,
    global_batch: int | None = None,
) -> tuple[str, ...]:
    """Why this layout is impossible; empty where it is possible."""
    return (
        *_cluster_limits(layout, cluster),
        *(reason for degree in DEGREES for reason in degree.limits(layout, model, sequence)),
        *_batch_limits(layout, global_batch),
        *_recompute_limits(layout, model),
    )


def _cluster_limits(layout: Layout, cluster: Cluster) -> Iterator[str]:
    if layout.chips != cluster.count:
        yield (
            f"{layout.data} x {layout.tensor} x {layout.pipeline} x "
            f"{layout.context} are {layout.chips} chips, not {cluster.count}"
        )


def _recompute_limits(layout: Layout, model: Model) -> Iterator[str]:
    if layout.modules and layout.recompute is not Recompute.NONE:
        yield f"{', '.join(layout.modules)} beside recompute {layout.recompute}, which has them"
    if layout.offloaded > model.layers / layout.pipeline:
        yield f"offload {layout.offloaded} of a stage of {model.layers / layout.pipeline:g} layers"
    for name in layout.modules:
        if not any(MODULES[name].is_in(kind) for kind in model.kinds):
            yield f"{name}: no layer of {model.name} has it"


def _batch_limits(layout: Layout, global_batch: int | None) -> Iterator[str]:
    if global_batch is not None and layout.global_batch != global_batch:
        yield (
            f"{layout.data} x {layout.micro_batch} x {layout.micro_batches} are "
            f"{layout.global_batch} sequences, not {global_batch}"
        )
