"""Formats of weights: by hand, and the sizes that llama.cpp's users print."""

import pytest

from torchtally.errors import UsageError
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.inference.formats import WEIGHT_FORMATS, weight_format
from torchtally.plan.inference.gguf import BLOCKS, has_more_bits
from torchtally.plan.inference.weights import bits_each, model_bytes
from torchtally.plan.kv_cache import cache_format

LLAMA_8B = {
    "q2_K": 3.1593, "q4_K_S": 4.6672, "q4_K_M": 4.8944, "q5_K_S": 5.5704, "q5_K_M": 5.7036,
    "q6_K": 6.5633, "q8_0": 8.5008,
}  # fmt: skip
"""Bits a weight of Llama 3.1 8B: ggml-org/llama.cpp, tools/quantize/README.md @311c2c9."""
LLAMA_70B = {
    "q2_K": 24.56, "q3_K_M": 31.91, "q4_K_S": 37.58, "q4_K_M": 39.60, "q5_K_S": 45.32,
    "q5_K_M": 46.52, "q6_K": 53.91, "q8_0": 69.83,
}  # fmt: skip
"""GiB of the file of Llama 3 70B, tokenizer and all (8 to 13 MiB):
XiongjieDai/GPU-Benchmarks-on-LLM-Inference, README.md @aa72e0e."""


@pytest.mark.parametrize("name", LLAMA_8B)
def test_bits_of_a_mixture_are_those_of_its_file(name: str) -> None:
    bits = bits_each(known_model("llama-3.1-8b"), weight_format(name))
    assert float(bits) == pytest.approx(LLAMA_8B[name], abs=1e-4)


@pytest.mark.parametrize("name", LLAMA_70B)
def test_sizes_of_a_70b_are_those_of_its_files(name: str) -> None:
    size = model_bytes(known_model("llama-3-70b"), weight_format(name)).value
    assert 0 <= LLAMA_70B[name] - size / 2**30 < 0.02


def test_a_third_of_the_layers_between_have_more_bits() -> None:
    chosen = [i for i in range(32) if has_more_bits(i, 32)]
    assert chosen == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]


SHAPE = (256, 512)
NUMBERS = 256 * 512
BYTES = {
    "bf16": 2 * NUMBERS,
    "fp8": NUMBERS + 256 * 2,
    "fp8-tensor": NUMBERS + 8,
    "fp8-block": NUMBERS + 2 * 4 * 4,
    "int8": NUMBERS + 256 * 2,
    "int4": NUMBERS // 2 + 256 * 4 * (2 + 2),
    "awq": NUMBERS // 2 + 256 * 4 * 2 + 256 * 4 // 2,
    "gptq": NUMBERS // 2 + 256 * 4 * 2 + 256 * 4 // 2 + 512 * 4,
    "nf4": NUMBERS // 2 + NUMBERS // 64 * 4,
    "nvfp4": NUMBERS // 2 + NUMBERS // 16 + 8,
    "mxfp4": NUMBERS // 2 + NUMBERS // 32,
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_a_matrix(name: str) -> None:
    assert WEIGHT_FORMATS[name].matrices.bytes_of(SHAPE) == BYTES[name]


def test_each_expert_has_scales_of_its_own() -> None:
    assert WEIGHT_FORMATS["fp8-tensor"].matrices.bytes_of((3, *SHAPE)) == 3 * (NUMBERS + 8)


def test_blocks_of_llama_cpp() -> None:
    assert BLOCKS["Q4_K"].bytes_of((2, 256)) == 2 * 144
    assert BLOCKS["Q8_0"].bytes_of((1, 64)) == 2 * 34


def test_gpt_oss_is_as_large_as_its_checkpoint() -> None:
    """60.8 GiB and 12.8 GiB, of its model card: arXiv 2508.10925, table 1."""
    for name, published_gib in {"gpt-oss-120b": 60.8, "gpt-oss-20b": 12.8}.items():
        size = model_bytes(known_model(name), weight_format("mxfp4")).value
        assert size / 2**30 == pytest.approx(published_gib, rel=0.005)


def test_every_format_sums_every_weight() -> None:
    """No format is larger than float32 or smaller than what it says of a matrix."""
    model = known_model("mixtral-8x7b")
    whole = sum(weight.elements for weight in weights_of(model))
    for kept in WEIGHT_FORMATS.values():
        assert whole / 4 < model_bytes(model, kept).value <= 4 * whole


@pytest.mark.parametrize("text", ["Q4_K_M", "q4_k_m", "FP4", "float16"])
def test_names_in_any_case(text: str) -> None:
    assert weight_format(text) in WEIGHT_FORMATS.values()


def test_unknown_formats_are_errors() -> None:
    with pytest.raises(UsageError, match="Did you mean q4_k_m"):
        weight_format("q4_km")
    with pytest.raises(UsageError, match="fp8"):
        cache_format("fp9")
