"""Bytes of a model's weights in a format: of the whole model, or of one weight."""

from collections import Counter
from fractions import Fraction

from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.weights import Group, Weight, weights_of
from torchtally.plan.inference import gguf
from torchtally.plan.inference.formats import WeightFormat
from torchtally.plan.inference.packings import Packing
from torchtally.plan.quantity import Quantity, of, total
from torchtally.units import Unit


def packings(weight: Weight, model: Model, kept: WeightFormat) -> Counter[Packing]:
    """How many of this weight's tensors lie in which way."""
    if kept.quantization is not None:
        return gguf.packings(weight, model, kept.quantization)
    return Counter({kept.packing_of(weight): weight.count})


def weight_bytes(weight: Weight, model: Model, kept: WeightFormat) -> int:
    """All tensors of this weight, with their scales."""
    counts = packings(weight, model, kept)
    return sum(count * packing.bytes_of(weight.shape) for packing, count in counts.items())


def model_bytes(model: Model, kept: WeightFormat) -> Quantity:
    """All weights, by what they are for. Exact: a tied matrix counts once."""
    groups: Counter[Group] = Counter()
    for weight in weights_of(model):
        groups[weight.group] += weight_bytes(weight, model, kept)
    parts = {
        group.replace("-", "_"): of(size, Unit.BYTES).with_name(group)
        for group, size in groups.items()
        if size
    }
    return total("weights", Unit.BYTES, parts, note=kept.summary)


def bits_each(model: Model, kept: WeightFormat) -> Fraction:
    """Bits of one parameter, on average, with scales and with what stays wide."""
    sizes = [(weight.elements, weight_bytes(weight, model, kept)) for weight in weights_of(model)]
    return Fraction(8 * sum(size for _, size in sizes), sum(count for count, _ in sizes))
