"""Bytes of keys, values and weights are those of transformers' own models, run on the CPU."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plan.config_cases import CASES, Keys
from tests.plan.test_config import hf, written
from torchtally.plan.architecture.config import read_config
from torchtally.plan.architecture.model import Model
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.weights import model_bytes
from torchtally.plan.kv_cache import Cache, CacheKind, cache_format, kv_cache_bytes

FAMILIES = (
    "gpt2", "llama", "mistral", "gemma2", "gemma3_text", "qwen3", "deepseek_v3", "phi", "gpt_neox",
    "mixtral", "gpt_oss", "falcon, one key", "cohere2", "llama4_text", "bloom", "mpt",
)  # fmt: skip
LENGTHS = (5, 40)
"""Tokens: below and above the windows of these configurations."""
WIDE = {"falcon, new": 2, "gpt_neo": 40 * 4 / (40 * 2 + 7 * 2)}
"""What transformers' dynamic caches hold at 40 tokens, over what the model needs: Falcon's new
layers repeat keys for every query, GPT-Neo's local layers keep what left their window."""
ALIGNED = {"moe_intermediate_size": 32}
"""PyTorch's grouped products on a CPU take rows of whole 16 bytes."""


@cache
def network(case: str) -> Any:
    model_type, keys = CASES[case]
    torch.manual_seed(0)
    config = hf().CONFIG_MAPPING[model_type](**widened(keys))
    return hf().AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def widened(keys: Keys) -> Keys:
    return keys | ALIGNED if "moe_intermediate_size" in keys else keys


def held_bytes(network: Any, empty: Any, tokens: int, sequences: int = 2) -> int:
    """After a prompt and one token: the bytes of all keys and values."""
    ids = torch.randint(3, 90, (sequences, tokens))
    with torch.no_grad():
        network(input_ids=ids[:, :-1], past_key_values=empty, use_cache=True)
        output = network(input_ids=ids[:, -1:], past_key_values=empty, use_cache=True)
    tensors = [(layer.keys, layer.values) for layer in output.past_key_values.layers]
    return sum(tensor.numel() * tensor.element_size() for pair in tensors for tensor in pair)


def our_model(network: Any, folder: Path) -> Model:
    return read_config(written(folder, network.config))


@pytest.mark.parametrize("case", FAMILIES)
def test_weights_and_caches_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    net = network(case)
    model = our_model(net, tmp_path)
    held = sum(each.numel() * each.element_size() for each in net.parameters())
    assert model_bytes(model, weight_format("bf16")).value == held
    for tokens in LENGTHS:
        dynamic = hf().DynamicCache(config=net.config)
        static = hf().StaticCache(config=net.config, max_cache_len=tokens)
        for empty, kind in ((dynamic, CacheKind.DYNAMIC), (static, CacheKind.STATIC)):
            ours = kv_cache_bytes(model, tokens, 2, Cache(kind)).value
            assert ours == held_bytes(net, empty, tokens)


@pytest.mark.parametrize("case", WIDE)
def test_two_families_hold_more_than_they_need(case: str, tmp_path: Path) -> None:
    """Which is no fault of the formula: docs/inference.md names them."""
    net = network(case)
    ours = kv_cache_bytes(our_model(net, tmp_path), 40, 2, Cache(CacheKind.DYNAMIC)).value
    held = held_bytes(net, hf().DynamicCache(config=net.config), 40)
    assert held == pytest.approx(WIDE[case] * ours)


def test_a_float8_cache_is_that_of_transformers(tmp_path: Path) -> None:
    net = network("llama")
    layers = pytest.importorskip("transformers.cache_utils")
    empty = hf().Cache(layers=[layers.Fp8QuantizedLayer() for _ in range(3)])
    ids = torch.randint(3, 90, (2, 6))
    with torch.no_grad():
        net(input_ids=ids, past_key_values=empty, use_cache=True)
    pairs = [
        pair for layer in empty.layers for pair in (layer._quantized_keys, layer._quantized_values)
    ]
    held = sum(part.numel() * part.element_size() for pair in pairs for part in pair)
    fp8 = Cache(CacheKind.DYNAMIC, kept=cache_format("fp8"))
    assert kv_cache_bytes(our_model(net, tmp_path), 6, 2, fp8).value == held


def test_latent_attention_is_one_short_vector(tmp_path: Path) -> None:
    """18 + 4 numbers of 2 bytes, which transformers 5 and serving engines hold; transformers 4 held
    6 heads of 12 + 4 and of 14.
    """
    model = our_model(network("deepseek_v3"), tmp_path)
    assert kv_cache_bytes(model, 40, 2).value == 3 * (18 + 4) * 2 * 40 * 2
    wide = kv_cache_bytes(model, 40, 2, Cache(CacheKind.EXPANDED)).value
    assert wide == 3 * 6 * (16 + 14) * 2 * 40 * 2
