"""The matrix work of a step: products, attention and convolutions, as needed and as done."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.ledger import Entry
from torchtally.timing.calibration.features import matrices
from torchtally.timing.roofline.products import product_dtype
from torchtally.timing.roofline.rates import REAL_OF_COMPLEX
from torchtally.trace import FORWARD_PHASES, Call, Phase, TensorSpec
from torchtally.work import Kind, cost_of
from torchtally.work.convention import Convention, apply_convention, needed_share


@dataclass(frozen=True, slots=True)
class Work:
    """A distinct call of matrix work in one phase, and how often it is made."""

    call: Call
    kind: Kind
    phase: Phase
    times: int

    @property
    def is_attention(self) -> bool:
        """What a script writes out as products is not known to be attention."""
        return self.kind is Kind.ATTENTION

    @property
    def is_causal(self) -> bool:
        """A part that attention in full counts is masked."""
        if not self.is_attention:
            return False
        full, causal = (needed_share(self.call, convention) for convention in Convention)
        return causal < full

    def executed_flops(self, attention: Convention) -> int:
        """FLOPs of all these calls, under a convention of attention."""
        _, cost = cost_of(self.call)
        return self.times * apply_convention(cost, self.call, self.kind, attention).flops

    def needed_flops(self, attention: Convention) -> int:
        """FLOPs as executed, but of attention what its mask leaves, and a fused backward without
        making the scores again.

        Of its products, 3 D + 2 E FLOPs for every point (D, E: head dims of keys and values),
        those of the forward pass twice are 2 D + 2 E.
        """
        flops = self.executed_flops(Convention.FULL)
        if not self.is_attention:
            return flops
        flops = int(flops * needed_share(self.call, attention))
        if not self.call.name.endswith("backward"):
            return flops
        D, E = self.call.tensor("query").shape[-1], self.call.tensor("value").shape[-1]
        return flops * (2 * D + 2 * E) // (3 * D + 2 * E) if D or E else flops

    @property
    def operand(self) -> TensorSpec:
        """An input that is multiplied, rather than added, scaled by or looked at."""
        if self.kind is Kind.PRODUCT and (specs := matrices(self.call)) is not None:
            return specs[0]
        named = self.call.tensors("query") or self.call.tensors("weight")
        return named[0] if named else self.call.inputs[0]


# Enum members are hashed by a slow road; this runs over every operator of a step.
_MATMUL_IDS = frozenset(id(kind) for kind in Kind if kind.is_matmul)


def works_of(entries: Iterable[Entry]) -> list[Work]:
    """The matrix work among them."""
    products = [entry for entry in entries if id(entry.kind) in _MATMUL_IDS and entry.cost.flops]
    times = Counter((entry.op.call, id(entry.op.phase)) for entry in products)
    first = {(entry.op.call, id(entry.op.phase)): entry for entry in products}
    return [
        Work(entry.call, entry.kind, entry.op.phase, times[key]) for key, entry in first.items()
    ]


def needed_flops(works: Iterable[Work], attention: Convention) -> int:
    """FLOPs of the forward and backward pass, and of evaluation where a period has it, since its
    time is in the period's; without recomputation.
    """
    phases = FORWARD_PHASES | {Phase.BACKWARD, Phase.EVALUATION}
    return sum(work.needed_flops(attention) for work in works if work.phase in phases)


def training_attention_flops(works: Iterable[Work]) -> int:
    """Three times the forward pass of attention operators, in full: 12 L H Q T for each token."""
    return 3 * sum(
        work.needed_flops(Convention.FULL)
        for work in works
        if work.is_attention and work.phase in FORWARD_PHASES
    )


def unit_of(work: Work, chip: Chip) -> str:
    """The dtype whose peak on a chip this work is held against.

    Complex numbers are multiplied as real ones; a chip without TF32 knows none.
    """
    dtype, _ = product_dtype(work.call, work.operand)
    if dtype == "tf32" and "tf32" not in chip.peaks:
        return "float32"
    return REAL_OF_COMPLEX.get(dtype, dtype)
