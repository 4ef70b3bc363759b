"""Weights of 8 and 4 bits: transformers loads them, and computes what torchao computes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.models.test_huggingface import GEMMA, KINDS, of_transformers, offline
from tests.train.models.test_transformer import GPT2, LLAMA, ids_of, model_of
from torchtally.errors import UsageError
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.huggingface import write_weights
from torchtally.train.models.quantised import pack, quantise

pytestmark = pytest.mark.one_case_in(3)

pytest.importorskip("torchao", reason="torchao quantises")
__all__ = ["offline"]

MODELS = {
    "llama": replace(LLAMA, width=64, ffn=96),
    "qwen 2": replace(KINDS["qwen 2"], width=32, ffn=64),
    "gemma 3": replace(GEMMA, width=32, ffn=64, heads=2, kv_heads=1),
}


def loss(logits: torch.Tensor, ids: torch.Tensor) -> float:
    value = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return value.item()


@pytest.mark.parametrize(("name", "cost"), [("int8", 0.003), ("fp8", 0.02), ("int4", 0.06)])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_transformers_computes_the_same(
    tmp_path: Path, config: TransformerConfig, name: str, cost: float
) -> None:
    pytest.importorskip("compressed_tensors", reason="transformers loads the format by it")
    model, ids = model_of(config), ids_of(config)
    with torch.no_grad():
        original = loss(model.eval()(ids), ids)
        quantise(model, name)
        write_weights(model, tmp_path, quantised=name)
        ours, theirs = model(ids), of_transformers(tmp_path)(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert 0 < abs(loss(theirs, ids) - original) < cost * original


def test_bytes_of_a_file(tmp_path: Path) -> None:
    """Of a matrix of 32 rows of 64: 2048 bytes and 32 scales; 1024 and 64 scales in int4."""
    sizes = {}
    for name in ("int8", "fp8", "int4"):
        model = model_of(MODELS["llama"])
        quantise(model, name)
        write_weights(model, tmp_path, quantised=name)
        tensors = load_file(tmp_path / "model.safetensors")
        place = "model.layers.0.self_attn.k_proj.weight"
        sizes[name] = {
            key.removeprefix(place): tensor.nbytes
            for key, tensor in tensors.items()
            if key.startswith(place)
        }
        assert tensors["model.embed_tokens.weight"].dtype == torch.float32
        assert tensors["lm_head.weight"].dtype == torch.float32
    assert sizes == {
        "int8": {"_packed": 2048, "_scale": 128, "_shape": 16},
        "fp8": {"": 2048, "_scale": 128},
        "int4": {"_packed": 1024, "_scale": 256, "_shape": 16},
    }
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["format"] == (
        "pack-quantized"
    )


def test_packing_by_hand() -> None:
    """-8 is 0, 7 is 15, 0 is 8: nibbles from the lowest on; a row is filled up with zeros."""
    assert pack(torch.tensor([[-8, 7, 0, 1]]), 4).tolist() == [[0x888898F0 - (1 << 32)]]
    assert pack(torch.tensor([[-128, 127, 0, -1]]), 8).tolist() == [[0x7F80FF00]]


REFUSED: dict[str, tuple[dict[str, Any], TransformerConfig]] = {
    "GPT-2 has no linear layers": ({"name": "int8"}, GPT2),
    "experts cannot be quantised yet": ({"name": "fp8"}, KINDS["mixtral"]),
    "width and ffn must be multiples of 32": ({"name": "int4"}, LLAMA),
}


@pytest.mark.parametrize(("message", "case"), REFUSED.items())
def test_what_cannot_be_stored_is_refused(
    message: str, case: tuple[dict[str, Any], TransformerConfig]
) -> None:
    options, config = case
    with pytest.raises(UsageError, match=message):
        quantise(model_of(config), **options)
