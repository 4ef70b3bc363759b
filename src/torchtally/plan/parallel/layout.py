"""A layout: how a training is spread over chips. The degrees of parallelism are in `degrees.py`.

Chips are numbered as Megatron-LM numbers them: tensor-parallel neighbours first, then context, then
data, and pipeline stages last. So the chips that communicate most are closest to each other.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from torchtally.plan.activations.setting import AttentionKernel, Implementation, Options
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
    """Order in which the stages of a pipeline work through the micro-batches."""

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


ZERO_BUBBLE = (Schedule.ZB_H1, Schedule.ZB_H2)


def spread_over(layers: int, stages: int) -> float:
    """Stages among which layers are spread, as the fullest stage has them: the stages, or fewer
    where layers do not divide (61 over 16: four on the fullest, as over 15.25).
    """
    return stages if layers % stages == 0 else layers / ceil(layers / stages)


def chunks_as_long(layers: int, stages: int, chunks: int) -> float:
    """How many chunks like its longest the fullest stage has: all, or fewer where layers do not
    divide (61 over 16 x 3: four layers in two chunks of one and one of two, as in two of two).
    """
    return ceil(layers / stages) / ceil(layers / (stages * chunks))


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
    """Chips among which a mixture's experts are split: out of those that share a stage."""
    expert_tensor: int | None = None
    """Chips that share each expert. Fewer than `tensor`, and experts are spread over chips of
    tensor parallelism, too (MoE parallel folding, arXiv 2504.14960). None: as many."""
    micro_batch: int = 1
    """Sequences that go through a stage at once."""
    micro_batches: int = 1
    """Of them in a step, one after the other."""
    recompute: Recompute = Recompute.NONE
    modules: tuple[str, ...] = ()
    """Of a layer, recomputed by themselves (`activations/modules.py`)."""
    offloaded: int = 0
    """Layers of a stage whose activations wait for the backward pass in the host's memory."""
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
        """Chips that share the states of weights that are not experts."""
        return self.shard_group or self.replicas

    @property
    def expert_split(self) -> int:
        """Chips among which each expert's inner width is split."""
        return self.expert_tensor or self.tensor

    @property
    def expert_chips(self) -> int:
        """That have all experts together, once."""
        return self.expert * self.expert_split

    @property
    def expert_replicas(self) -> int:
        """Chips that hold the same part of the same experts."""
        return self.replicas * self.tensor // self.expert_chips

    @property
    def expert_shards(self) -> int:
        """Chips of those that share the states of one expert."""
        return max(1, self.shards * self.tensor // self.expert_chips)

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def is_fully_sharded(self) -> bool:
        """All chips share all weights, and nothing else: FSDP2 over all of them."""
        spared = self.micro_batches > 1 or self.modules or self.offloaded
        is_alone = self.chips == self.data == self.shards > 1 and self.expert == 1
        return is_alone and self.shard is Sharding.ZERO3 and not spared

    @property
    def has_stages(self) -> bool:
        return self.pipeline > 1

    @property
    def is_accumulating(self) -> bool:
        """Gradients of several micro-batches are added up."""
        return self.micro_batches > 1

    @property
    def losses_at_once(self) -> int:
        """Micro-batches whose logits are kept: GPipe computes all losses before any gradient."""
        return self.micro_batches if self.schedule is Schedule.GPIPE else 1

    @property
    def inner_split(self) -> int:
        """Chips among which heads, inner widths and the vocabulary are split."""
        return self.tensor

    @property
    def stream_split(self) -> int:
        """Chips among which norms and dropouts split the residual stream by tokens."""
        return self.tensor if self.is_sequence_parallel else 1

    def tokens(self, sequence: int) -> int:
        """Tokens of a micro-batch, on one chip."""
        return self.micro_batch * sequence // self.context

    @property
    def has_experts_apart(self) -> bool:
        """Chips send each other tokens for their experts."""
        return self.expert > 1

    @property
    def is_exchanged(self) -> bool:
        """Recomputation keeps what chips with different experts send each other."""
        return self.has_experts_apart and self.recompute is Recompute.OPERATORS

    @property
    def activation_options(self) -> Options:
        """What decides which activations a chip keeps."""
        return {
            "tensor": self.tensor,
            "is_sequence_parallel": self.is_sequence_parallel,
            "context": self.context,
            "recompute": self.recompute,
            "modules": self.modules,
            "is_exchanged": self.is_exchanged,
            "kernel": self.kernel,
            "implementation": self.implementation,
        }
