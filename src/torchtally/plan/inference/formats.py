"""Formats of weights, one row each: how matrices lie in memory, and in what they are multiplied.

Scales count, and so does what stays in 16 bits: embeddings, the head, norms, routers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.inference.gguf import QUANTIZATIONS, Quantization
from torchtally.plan.inference.packings import FLOAT16, FLOAT32, Packing, plain

LINEAR = frozenset((Group.ATTENTION, Group.FEED_FORWARD, Group.EXPERTS))
"""What quantisers take: matrices of layers."""
EXPERTS = frozenset((Group.EXPERTS,))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A way to keep a model's weights."""

    name: str
    summary: str
    source: str = ""
    matrices: Packing
    others: Packing = FLOAT16
    """Embedding, head, norms, biases, routers."""
    groups: frozenset[Group] = LINEAR
    """Whose matrices are `matrices`; of others, `others`."""
    has_head: bool = False
    """A head of its own is `matrices`, too."""
    products: tuple[str, ...] = ("bfloat16",)
    """Dtypes of the operands of products, the best first: the first that a chip has. What a format
    is not multiplied in is cast on the way."""
    quantization: Quantization | None = field(default=None, hash=False)
    """Of llama.cpp, which decides matrix by matrix."""

    def packing_of(self, weight: Weight) -> Packing:
        """Packing of each of this weight's tensors. Not of a mixture."""
        is_head = weight.name == "head" and self.has_head
        is_matrix = len(weight.shape) > 1 and weight.uses > 0
        if is_head or (is_matrix and weight.group in self.groups):
            return self.matrices
        return self.others

    @property
    def is_plain(self) -> bool:
        """Every number by itself, all alike."""
        return self.matrices == self.others


FP8 = ("float8_e4m3fn", "float8_e4m3fnuz", "bfloat16")
FP4 = ("float4_e2m1fn_x2", "bfloat16")
COMPRESSED_TENSORS = "vllm-project/compressed-tensors, FP8_DYNAMIC: a scale for each output"
AWQ_SOURCE = "Lin et al. 2023, arXiv 2306.00978; casper-hansen/AutoAWQ, WQLinear_GEMM"
GPTQ_SOURCE = "Frantar et al. 2022, arXiv 2210.17323; ModelCloud/GPTQModel, TorchQuantLinear"
MX_SOURCE = "OCP Microscaling Formats (MX) 1.0, 2023, table 1"

_LISTED = (
    WeightFormat(
        name="fp32", summary="float32", matrices=FLOAT32, others=FLOAT32,
        products=("tf32", "float32"),
    ),
    WeightFormat(name="bf16", summary="bfloat16", matrices=FLOAT16),
    WeightFormat(
        name="fp16", summary="float16", matrices=FLOAT16, products=("float16", "bfloat16"),
    ),
    WeightFormat(
        name="fp8", summary="float8 e4m3, a 16-bit scale for each output; products in float8",
        matrices=Packing(bits=8, rows=1, scale_bytes=2), products=FP8, source=COMPRESSED_TENSORS,
    ),
    WeightFormat(
        name="fp8-tensor", summary="float8 e4m3, a float32 scale for each matrix and its input",
        matrices=Packing(bits=8, tensor_bytes=8), products=FP8,
        source="NVIDIA ModelOpt, FP8: weight_scale and input_scale",
    ),
    WeightFormat(
        name="fp8-block", summary="float8 e4m3, a float32 scale for 128 x 128 weights",
        matrices=Packing(bits=8, rows=128, columns=128, scale_bytes=4), products=FP8,
        source="DeepSeek-V3, arXiv 2412.19437, section 3.3.2; weight_scale_inv of its checkpoint",
    ),
    WeightFormat(
        name="mxfp8", summary="float8, an 8-bit exponent for 32 weights",
        matrices=Packing(bits=8, rows=1, columns=32, scale_bytes=1), products=FP8,
        source=MX_SOURCE,
    ),
    WeightFormat(
        name="int8", summary="int8, a 16-bit scale for each output; products in bfloat16 (W8A16)",
        matrices=Packing(bits=8, rows=1, scale_bytes=2), has_head=True,
        source="pytorch-labs/gpt-fast, quantize.py: WeightOnlyInt8Linear",
    ),
    WeightFormat(
        name="w8a8", summary="int8, a 16-bit scale for each output; products in int8",
        matrices=Packing(bits=8, rows=1, scale_bytes=2), products=("int8", "bfloat16"),
        source="Xiao et al. 2022, arXiv 2211.10438 (SmoothQuant); compressed-tensors, W8A8",
    ),
    WeightFormat(
        name="int4", summary="int4, a 16-bit scale and zero for 128 weights (torchao, tinygemm)",
        matrices=Packing(bits=4, rows=1, columns=128, scale_bytes=2, zero_bits=16),
        has_head=True, source="pytorch-labs/gpt-fast, quantize.py: WeightOnlyInt4Linear",
    ),
    WeightFormat(
        name="int4-g32", summary="the same for 32 weights",
        matrices=Packing(bits=4, rows=1, columns=32, scale_bytes=2, zero_bits=16),
        has_head=True, source="pytorch-labs/gpt-fast, quantize.py: WeightOnlyInt4Linear",
    ),
    WeightFormat(
        name="awq", summary="int4, a 16-bit scale and a 4-bit zero for 128 weights",
        matrices=Packing(bits=4, rows=1, columns=128, scale_bytes=2, zero_bits=4),
        products=("float16", "bfloat16"), source=AWQ_SOURCE,
    ),
    WeightFormat(
        name="gptq", summary="as awq, and the group of each input as an int32",
        matrices=Packing(
            bits=4, rows=1, columns=128, scale_bytes=2, zero_bits=4, column_bytes=4
        ),
        products=("float16", "bfloat16"), source=GPTQ_SOURCE,
    ),
    WeightFormat(
        name="nf4", summary="4-bit normal floats, a float32 scale for 64 weights (bitsandbytes)",
        matrices=Packing(bits=4, rows=1, columns=64, scale_bytes=4),
        source="Dettmers et al. 2023, arXiv 2305.14314, without double quantisation",
    ),
    WeightFormat(
        name="nvfp4", summary="4-bit floats, a float8 scale for 16 weights; products in float4",
        matrices=Packing(bits=4, rows=1, columns=16, scale_bytes=1, tensor_bytes=8), products=FP4,
        source="NVIDIA ModelOpt, NVFP4: weight_scale, weight_scale_2 and input_scale",
    ),
    WeightFormat(
        name="mxfp4", summary="4-bit floats, an 8-bit exponent for 32 weights, of experts alone",
        matrices=Packing(bits=4, rows=1, columns=32, scale_bytes=1), groups=EXPERTS,
        products=("bfloat16",), source=f"{MX_SOURCE}; gpt-oss, arXiv 2508.10925, section 2.1",
    ),
    WeightFormat(
        name="mxfp4-all", summary="the same of all matrices of layers; products in float4",
        matrices=Packing(bits=4, rows=1, columns=32, scale_bytes=1), products=FP4,
        source=MX_SOURCE,
    ),
    *(
        WeightFormat(
            name=name, summary=f"llama.cpp's {name}", matrices=plain(0), quantization=rule,
            products=("float16", "bfloat16"),
            source="ggml-org/llama.cpp, src/llama-quant.cpp @007dbbf3",
        )
        for name, rule in QUANTIZATIONS.items()
    ),
)  # fmt: skip
WEIGHT_FORMATS: Mapping[str, WeightFormat] = {listed.name: listed for listed in _LISTED}

ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "f16": "fp16", "half": "fp16", "float32": "fp32",
    "f32": "fp32", "fp4": "nvfp4", "w4a16": "awq", "w8a16": "int8", "bnb4": "nf4",
    "float8": "fp8", "float8_e4m3fn": "fp8", "q8": "q8_0", "q4_k": "q4_k_m", "q5_k": "q5_k_m",
}  # fmt: skip


def weight_format(name: str) -> WeightFormat:
    """The format of this name, in any case. Raises UsageError for any other."""
    lowered = {listed.lower(): listed for listed in WEIGHT_FORMATS}
    word = name.lower()
    listed_name = lowered.get(ALIASES.get(word, word))
    if listed_name is None:
        near = did_you_mean(word, lowered)
        raise UsageError(f"Unknown weight format {name!r}. {near}")
    return WEIGHT_FORMATS[listed_name]
