"""How a training is laid out over chips: the degrees of parallelism, and what is not possible.

Chips are numbered as Megatron-LM numbers them: tensor-parallel neighbours first, then context, then
data, and pipeline stages last. So what talks most stands closest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torchtally.chips import Cluster
from torchtally.plan.activations import Implementation, Kernel
from torchtally.plan.architecture.model import Experts, FeedForward, Model, SelfAttention
from torchtally.plan.flops import Recompute


class Shard(StrEnum):
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
        return list(Shard).index(self)


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
    shard: Shard = Shard.NONE
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
    kernel: Kernel = Kernel.FLASH
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


def _words(it: Layout) -> Iterator[str]:
    group = f" in groups of {it.shard_group}" if it.shard_group else ""
    if it.replicas > 1:
        yield f"dp {it.data}" + (f" {it.shard}{group}" if it.shard is not Shard.NONE else "")
    if it.tensor > 1:
        yield f"tp {it.tensor}" + (" with sp" if it.is_sequence_parallel else "")
    if it.pipeline > 1:
        chunks = f" x{it.virtual_stages}" if it.virtual_stages > 1 else ""
        yield f"pp {it.pipeline} {it.schedule}{chunks}"
    if it.context > 1:
        yield f"cp {it.context}"
    if it.expert > 1:
        yield f"ep {it.expert}"
    yield f"micro-batch {it.micro_batch} x{it.micro_batches}"
    if it.recompute is not Recompute.NONE:
        yield f"recompute {it.recompute}"


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


def _of_cluster(it: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if it.chips != cluster.count:
        yield (
            f"{it.data} x {it.tensor} x {it.pipeline} x {it.context} are {it.chips} chips, "
            f"not {cluster.count}"
        )


def _of_tensor(it: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    for kind in model.kinds:
        attention, block = kind.attention, kind.feed_forward
        if attention.heads % it.tensor:
            yield f"{attention.heads} heads do not divide by tp {it.tensor}"
        if isinstance(attention, SelfAttention) and attention.kv_heads % it.tensor:
            yield f"{attention.kv_heads} heads of keys do not divide by tp {it.tensor}"
        if block.width % it.tensor:
            what = "feed-forward" if isinstance(block, FeedForward) else "expert"
            yield f"a {what} of {block.width} does not divide by tp {it.tensor}"
        if isinstance(block, Experts) and block.shared_width % it.tensor:
            yield f"a shared expert of {block.shared_width} does not divide by tp {it.tensor}"
    if it.is_sequence_parallel and (sequence // it.context) % it.tensor:
        yield f"{sequence // it.context} tokens do not divide by tp {it.tensor} for sp"


def _of_pipeline(it: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if model.layers % (it.pipeline * it.virtual_stages):
        chunks = f" x {it.virtual_stages} chunks" if it.virtual_stages > 1 else ""
        yield f"{model.layers} layers do not divide by pp {it.pipeline}{chunks}"
    is_interleaved = it.schedule is Schedule.INTERLEAVED
    if is_interleaved != (it.virtual_stages > 1):
        yield f"{it.schedule} with {it.virtual_stages} chunks of layers on a chip"
    if is_interleaved and it.pipeline == 1:
        yield "an interleaved schedule of one stage"
    if is_interleaved and it.micro_batches % it.pipeline:
        yield f"interleaved, {it.micro_batches} micro-batches do not divide by pp {it.pipeline}"


def _of_sequence(it: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if it.context > 1 and sequence % (2 * it.context):
        # Each chip has a piece of the front and one of the back, so that all have as much to do.
        yield f"{sequence} tokens do not divide into {2 * it.context} pieces for cp {it.context}"


def _of_experts(it: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    blocks = [kind.feed_forward for kind in model.kinds]
    experts = [block.experts for block in blocks if isinstance(block, Experts)]
    if it.expert > 1 and not experts:
        yield f"ep {it.expert} of a model without experts"
    for count in experts:
        if count % it.expert:
            yield f"{count} experts do not divide by ep {it.expert}"
    if it.replicas % it.expert:
        yield f"ep {it.expert} does not divide the {it.replicas} chips of dp and cp"


def _of_shards(it: Layout, model: Model, cluster: Cluster, sequence: int) -> Iterator[str]:
    if it.shard_group is None:
        return
    if it.shard is Shard.NONE:
        yield f"groups of {it.shard_group} that share nothing"
    if it.replicas % it.shard_group or it.shard_group % it.expert:
        yield (
            f"groups of {it.shard_group} for {it.shard} do not divide the {it.replicas} chips of "
            f"dp and cp, or not into ep {it.expert}"
        )


def _of_batch(it: Layout, global_batch: int | None) -> Iterator[str]:
    if global_batch is not None and it.global_batch != global_batch:
        yield (
            f"{it.data} x {it.micro_batch} x {it.micro_batches} are {it.global_batch} sequences, "
            f"not {global_batch}"
        )
