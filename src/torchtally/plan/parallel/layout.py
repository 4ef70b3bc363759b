"""How a training is laid out over chips: the degrees of parallelism, and what is not possible.

Chips are numbered as Megatron-LM numbers them: tensor-parallel neighbours first, then context, then
data, and pipeline stages last. So what talks most stands closest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torchtally.chips import Cluster
from torchtally.plan.activations import AttentionKernel, Implementation
from torchtally.plan.architecture.model import Experts, FeedForward, Model, SelfAttention
from torchtally.plan.flops import Recompute


class Sharding(StrEnum):
    """What data-parallel chips share instead of each holding all (ZeRO, arXiv 1910.02054)."""

    NONE = "none"
    """Nothing: plain data parallelism (DDP)."""
    ZERO1 = "zero-1"
    """Optimizer state and master weights."""
    ZERO2 = "zero-2"
    """And gradients."""
    ZERO3 = "zero-3"
    """And parameters: FSDP."""

    @property
    def stage(self) -> int:
        return list(Sharding).index(self)


class Schedule(StrEnum):
    """In which order the stages of a pipeline work through the micro-batches."""

    GPIPE = "gpipe"
    """All forward, then all backward: Huang et al. 2019, arXiv 1811.06965."""
    ONE_F_ONE_B = "1f1b"
    """One forward, one backward: PipeDream-Flush, as in Narayanan et al. 2021, section 2.2.1."""
    INTERLEAVED = "interleaved"
    """1F1B with several chunks of layers on each chip: Narayanan et al. 2021, section 2.2.2."""
    ZB_H1 = "zb-h1"
    """Weight gradients fill the bubble, in 1F1B's memory: Qi et al. 2023, arXiv 2401.10241."""
    ZB_H2 = "zb-h2"
    """The same with twice the memory and no bubble in the best case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to spread a training over chips."""

    data: int = 1
    shard: Sharding = Sharding.NONE
    shard_group: int | None = None
    """States are shared within groups of so many chips and replicated across (HSDP). None: by all
    that have the same weights, `replicas`."""
    tensor: int = 1
    is_sequence_parallel: bool = False
    """What tensor parallelism leaves whole is split along the sequence (Korthikanti 2022)."""
    pipeline: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    virtual_stages: int = 1
    """Chunks of layers on each chip; more than 1 when interleaved."""
    context: int = 1
    """Chips that share every sequence, with keys and values going round in a ring."""
    expert: int = 1
    """Chips among which a mixture's experts are split: out of those of `replicas`."""
    micro_batch: int = 1
    """Sequences that go through a stage at once."""
    micro_batches: int = 1
    """Of them in a step, one after the other."""
    recompute: Recompute = Recompute.NONE
    kernel: AttentionKernel = AttentionKernel.FLASH
    implementation: Implementation = Implementation.EAGER

    @property
    def chips(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def replicas(self) -> int:
        """Chips that hold the same weights, but for experts: gradients are summed over them."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Among how many chips the states of weights that are not experts are shared."""
        return self.shard_group or self.replicas

    @property
    def expert_shards(self) -> int:
        """Among how many chips the states of one expert are shared."""
        return max(1, self.shards // self.expert)

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def text(self) -> str:
        """In words and numbers, without what is 1: "dp 16 zero-1, tp 8, pp 8 interleaved x5"."""
        return ", ".join(_words(self)) or "one chip"


def _words(layout: Layout) -> Iterator[str]:
    group = f" in groups of {layout.shard_group}" if layout.shard_group else ""
    if layout.replicas > 1:
        yield f"dp {layout.data}" + (
            f" {layout.shard}{group}" if layout.shard is not Sharding.NONE else ""
        )
    if layout.tensor > 1:
        yield f"tp {layout.tensor}" + (" with sp" if layout.is_sequence_parallel else "")
    if layout.pipeline > 1:
        chunks = f" x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
        yield f"pp {layout.pipeline} {layout.schedule}{chunks}"
    if layout.context > 1:
        yield f"cp {layout.context}"
    if layout.expert > 1:
        yield f"ep {layout.expert}"
    yield f"micro-batch {layout.micro_batch} x{layout.micro_batches}"
    if layout.recompute is not Recompute.NONE:
        yield f"recompute {layout.recompute}"


def invalidities(
    layout: Layout,
    model: Model,
    cluster: Cluster,
    *,
    sequence: int,
    global_batch: int | None = None,
) -> tuple[str, ...]:
    """Why this layout cannot be, in words; nothing where it can.

    Tensor parallelism across nodes is possible, and slow. A vocabulary that does not divide is
    padded, as Megatron-LM does it.
    """
    return tuple(
        reason
        for check in (_of_cluster, _of_tensor, _of_pipeline, _of_sequence, _of_experts, _of_shards)
        for reason in check(layout, model, cluster, sequence)
    ) + tuple(_of_batch(layout, global_batch))


def _of_cluster(layout: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if layout.chips != cluster.count:
        yield (
            f"{layout.data} x {layout.tensor} x {layout.pipeline} x "
            f"{layout.context} are {layout.chips} chips, "
            f"not {cluster.count}"
        )


def _of_tensor(layout: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    for kind in model.kinds:
        attention, block = kind.attention, kind.feed_forward
        if attention.heads % layout.tensor:
            yield f"{attention.heads} heads do not divide by tp {layout.tensor}"
        if isinstance(attention, SelfAttention) and attention.kv_heads % layout.tensor:
            yield f"{attention.kv_heads} heads of keys do not divide by tp {layout.tensor}"
        if block.width % layout.tensor:
            what = "feed-forward" if isinstance(block, FeedForward) else "expert"
            yield f"a {what} of {block.width} does not divide by tp {layout.tensor}"
        if isinstance(block, Experts) and block.shared_width % layout.tensor:
            yield f"a shared expert of {block.shared_width} does not divide by tp {layout.tensor}"
    if layout.is_sequence_parallel and (sequence // layout.context) % layout.tensor:
        yield f"{sequence // layout.context} tokens do not divide by tp {layout.tensor} for sp"


def _of_pipeline(layout: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if model.layers % (layout.pipeline * layout.virtual_stages):
        chunks = f" x {layout.virtual_stages} chunks" if layout.virtual_stages > 1 else ""
        yield f"{model.layers} layers do not divide by pp {layout.pipeline}{chunks}"
    is_interleaved = layout.schedule is Schedule.INTERLEAVED
    if is_interleaved != (layout.virtual_stages > 1):
        yield f"{layout.schedule} with {layout.virtual_stages} chunks of layers on a chip"
    if is_interleaved and layout.pipeline == 1:
        yield "an interleaved schedule of one stage"
    if is_interleaved and layout.micro_batches % layout.pipeline:
        yield (
            f"interleaved, {layout.micro_batches} micro-batches do not divide by pp "
            f"{layout.pipeline}"
        )


def _of_sequence(layout: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if layout.context > 1 and sequence % (2 * layout.context):
        # Each chip has a piece of the front and one of the back, so that all have as much to do.
        yield (
            f"{sequence} tokens do not divide into {2 * layout.context} pieces for cp "
            f"{layout.context}"
        )


def _of_experts(layout: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    blocks = [kind.feed_forward for kind in model.kinds]
    experts = [block.experts for block in blocks if isinstance(block, Experts)]
    if layout.expert > 1 and not experts:
        yield f"ep {layout.expert} of a model without experts"
    for count in experts:
        if count % layout.expert:
            yield f"{count} experts do not divide by ep {layout.expert}"
    if layout.replicas % layout.expert:
        yield f"ep {layout.expert} does not divide the {layout.replicas} chips of dp and cp"


def _of_shards(layout: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if layout.shard_group is None:
        return
    if layout.shard is Sharding.NONE:
        yield f"groups of {layout.shard_group} that share nothing"
    if layout.replicas % layout.shard_group or layout.shard_group % layout.expert:
        yield (
            f"groups of {layout.shard_group} for {layout.shard} do not divide the "
            f"{layout.replicas} chips of "
            f"dp and cp, or not into ep {layout.expert}"
        )


def _of_batch(layout: Layout, global_batch: int | None) -> Iterator[str]:
    if global_batch is not None and layout.global_batch != global_batch:
        yield (
            f"{layout.data} x {layout.micro_batch} x {layout.micro_batches} are "
            f"{layout.global_batch} sequences, "
            f"not {global_batch}"
        )
