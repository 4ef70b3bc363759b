"""llama.cpp's formats: blocks of numbers with their scales in them, and mixtures of such formats.

A mixture such as Q4_K_M is a rule: most matrices are Q4_K, those that matter more are Q6_K. The
rules are those of `llama_tensor_get_type_impl` (ggml-org/llama.cpp, src/llama-quant.cpp @007dbbf3),
without an importance matrix; sizes of blocks are ggml's (ggml/src/ggml-common.h).

i, n: a layer, and all of them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from torchtally.plan.architecture.model import Experts, Model, SelfAttention
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.inference.packings import FLOAT16, FLOAT32, Packing


def block(columns: int, block_bytes: int) -> Packing:
    """So many numbers of a row, scales and all, in so many bytes."""
    return Packing(bits=Fraction(8 * block_bytes, columns), least_columns=columns)


BLOCKS: Mapping[str, Packing] = {
    "Q4_0": block(32, 18), "Q5_0": block(32, 22), "Q5_1": block(32, 24), "Q8_0": block(32, 34),
    "MXFP4": block(32, 17), "Q2_K": block(256, 84), "Q3_K": block(256, 110),
    "Q4_K": block(256, 144), "Q5_K": block(256, 176), "Q6_K": block(256, 210), "F16": FLOAT16,
}  # fmt: skip

FALLBACKS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "Q4_0": "F16", "Q5_0": "F16", "Q5_1": "F16", "Q8_0": "F16", "MXFP4": "F16",
}  # fmt: skip
"""Where a row is no multiple of the block (`tensor_type_fallback`)."""

MANY_EXPERTS = 8
"""The count of experts, Mixtral's, at which small matrices of attention are Q8_0."""
SEVENTY_LAYERS, SHARING_HEADS = 80, 8
"""What llama.cpp takes for a 70B: 80 layers, and 8 queries for each key."""
MANY_QUERIES = 4
"""Queries for each key from which the matrix of values is small enough for more bits."""


def has_more_bits(i: int, n: int) -> bool:
    """The first and the last eighth of all layers, and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """A matrix that a rule decides on."""

    i: int
    n: int
    queries: int
    """For each key."""
    is_seventy: bool

    @property
    def is_chosen(self) -> bool:
        return has_more_bits(self.i, self.n)


Rule = Callable[[LayerPlace], str]
"""Which block format a matrix gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """One name of llama-quantize's: the format of most matrices, and rules for some."""

    most: str
    values: Rule | None = None
    fused: str | None = None
    """Queries, keys and values in one matrix."""
    down: Rule | None = None
    output: str | None = None
    is_of_experts: bool = False
    """Most matrices are Q8_0, and only experts are `most`."""


QUANTIZATIONS: Mapping[str, Quantization] = {
    "q2_K": Quantization(
        most="Q2_K",
        values=lambda place: "Q4_K" if place.queries >= MANY_QUERIES else "Q3_K",
        down=lambda place: "Q3_K",
        output="Q3_K",
    ),
    "q3_K_M": Quantization(
        most="Q3_K",
        values=lambda place: "Q5_K" if place.i < 2 else "Q4_K",
        fused="Q4_K",
        down=lambda place: "Q5_K" if place.i < place.n // 16 else "Q4_K",
        output="Q4_K",
    ),
    "q4_0": Quantization(most="Q4_0"),
    "q4_K_S": Quantization(
        most="Q4_K",
        values=lambda place: "Q5_K" if place.i < 4 else "Q4_K",
        down=lambda place: "Q5_K" if place.i < place.n // 8 else "Q4_K",
    ),
    "q4_K_M": Quantization(
        most="Q4_K",
        values=lambda place: "Q6_K" if place.is_chosen else "Q4_K",
        fused="Q5_K",
        down=lambda place: "Q6_K" if place.is_chosen else "Q4_K",
    ),
    "q5_K_S": Quantization(most="Q5_K"),
    "q5_K_M": Quantization(
        most="Q5_K",
        values=lambda place: "Q6_K" if place.is_chosen else "Q5_K",
        fused="Q6_K",
        down=lambda place: "Q6_K" if place.is_chosen else "Q5_K",
    ),
    "q6_K": Quantization(most="Q6_K"),
    "q8_0": Quantization(most="Q8_0"),
    "mxfp4-gguf": Quantization(most="MXFP4", is_of_experts=True),
}


def packings(weight: Weight, model: Model, mixture: Quantization) -> Counter[Packing]:
    """How many of this weight's tensors lie in which format; one tensor of experts is a stack.

    Which layers a kind of layer is at is not known of a model of several kinds: then each kind is
    assumed to be spread evenly over the layers.
    """
    if len(weight.shape) < 2 or weight.group in (Group.NORMS, Group.ROUTER):
        return Counter({FLOAT32: weight.count})
    if weight.name in ("positions", "relative positions"):
        return Counter({FLOAT32: weight.count})
    places = [_place(i, weight.count, model) for i in range(weight.count)]
    return Counter(_fitting(_name(weight, model, mixture, place), weight) for place in places)


def _place(at: int, count: int, model: Model) -> LayerPlace:
    n = model.layers
    attention = model.kinds[0].attention
    queries = attention.heads // attention.kv_heads if isinstance(attention, SelfAttention) else 1
    is_seventy = n == SEVENTY_LAYERS and queries == SHARING_HEADS
    return LayerPlace(at if count == n else at * n // max(count, 1), n, queries, is_seventy)


def _name(weight: Weight, model: Model, mixture: Quantization, place: LayerPlace) -> str:
    """The block format, before it is known to fit."""
    name, most = weight.name, mixture.most
    if name == "head" or (name == "embedding" and model.is_tied):
        return "Q8_0" if most in ("Q8_0", "MXFP4") else "Q6_K"
    if mixture.is_of_experts:
        return most if weight.group is Group.EXPERTS else "Q8_0"
    if name in ("v", "qkv", "kv up"):
        return _of_values(name, model, mixture, place)
    if name == "k" and _experts(model) == MANY_EXPERTS:
        return "Q8_0"
    if name in ("down", "experts out") and mixture.down:
        return mixture.down(place)
    if name == "attention output":
        return _of_output(model, mixture)
    return most


def _of_values(name: str, model: Model, mixture: Quantization, place: LayerPlace) -> str:
    chosen = mixture.values(place) if mixture.values else mixture.most
    if place.is_seventy and chosen in ("Q3_K", "Q4_K"):
        chosen = "Q5_K"
    return "Q8_0" if _experts(model) == MANY_EXPERTS else chosen


def _of_output(model: Model, mixture: Quantization) -> str:
    if _experts(model) == MANY_EXPERTS:
        return "Q5_K" if mixture.most in ("Q2_K", "Q3_K", "Q4_K") else mixture.most
    return mixture.output or mixture.most


def _experts(model: Model) -> int:
    blocks = (kind.feed_forward for kind in model.kinds)
    return max((block.experts for block in blocks if isinstance(block, Experts)), default=0)


def _fitting(name: str, weight: Weight) -> Packing:
    """The format, or what stands in for it where rows are no multiple of its blocks."""
    while weight.shape[-1] % BLOCKS[name].least_columns:
        name = FALLBACKS[name]
    return BLOCKS[name]
