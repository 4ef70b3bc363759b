"""What a calibration's samples amount to: FLOP/s and bytes per second, by sort of work."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from torchtally.timing.calibration.calibration import Calibration
from torchtally.timing.calibration.features import is_tf32, matrices, orientation
from torchtally.trace import Call, TensorSpec
from torchtally.work import Kind, cost_of


@dataclass(frozen=True, slots=True)
class ProductRate:
    """One product of matrices: B times (M, K) @ (K, N)."""

    dtype: str
    """As the hardware table spells it: "tf32" for float32 with TF32 allowed."""
    shape: tuple[int, int, int, int]
    """B, M, N, K."""
    layout: str
    """How the operands lie: "NT" for the second one transposed."""
    flops: int
    flop_per_s: float

    @property
    def slenderness(self) -> float:
        """Longest side over shortest: 1 for a cube."""
        return max(self.shape[1:]) / min(self.shape[1:])


@dataclass(frozen=True, slots=True)
class AttentionRate:
    """One call of an attention kernel. Its FLOPs are counted in full, masked ones too."""

    dtype: str
    shape: tuple[int, int, int, int]
    """Batch with heads, query length, key length, head dim."""
    is_backward: bool
    is_causal: bool
    flops: int
    flop_per_s: float


@dataclass(frozen=True, slots=True)
class CopyRate:
    """One copy between host and device."""

    bytes: int
    is_to_device: bool
    is_pinned: bool
    bytes_per_s: float


def product_rates(calibration: Calibration) -> Iterator[ProductRate]:
    for sample in calibration.samples:
        kind, cost = cost_of(sample.call)
        operands = matrices(sample.call) if kind is Kind.PRODUCT else None
        if operands is None or not cost.flops:
            continue
        left, right = operands
        (M, K), N = left.shape[-2:], right.shape[-1]
        yield ProductRate(
            dtype="tf32" if is_tf32(sample.call) else left.dtype,
            shape=(prod(left.shape[:-2]), M, N, K),
            layout=orientation(left) + orientation(right),
            flops=cost.flops,
            flop_per_s=cost.flops / sample.seconds,
        )


def attention_rates(calibration: Calibration) -> Iterator[AttentionRate]:
    for sample in calibration.samples:
        kind, cost = cost_of(sample.call)
        if kind is not Kind.ATTENTION or not cost.flops:
            continue
        query, key = sample.call.tensor("query"), sample.call.tensor("key")
        yield AttentionRate(
            dtype=query.dtype,
            shape=(prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]),
            is_backward=sample.call.name.endswith("_backward"),
            is_causal=sample.call.literal("is_causal") is True,
            flops=cost.flops,
            flop_per_s=cost.flops / sample.seconds,
        )


def copy_rates(calibration: Calibration) -> Iterator[CopyRate]:
    for sample in calibration.samples:
        source, target = _ends(sample.call)
        if source is None or target is None or source.is_on_device is target.is_on_device:
            continue
        host = target if source.is_on_device else source
        if host.bytes:
            yield CopyRate(
                bytes=host.bytes,
                is_to_device=target.is_on_device,
                is_pinned=host.is_pinned,
                bytes_per_s=host.bytes / sample.seconds,
            )


def _ends(call: Call) -> tuple[TensorSpec | None, TensorSpec | None]:
    """Source and target of a copy between host and device; (None, None) for any other call."""
    if call.name == "aten.copy_" and len(call.inputs) == 2:
        return call.inputs[1], call.inputs[0]
    if call.name == "aten._to_copy" and call.inputs and call.outputs:
        return call.inputs[0], call.outputs[0]
    return None, None
