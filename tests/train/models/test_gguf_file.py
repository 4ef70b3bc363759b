"""GGUF files: llama.cpp and transformers compute our logits from them, where they are installed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from torchtally.errors import UsageError
from torchtally.train.data.tokenizer import byte_tokenizer_text
from torchtally.train.models.config import RopeStretch, TransformerConfig
from torchtally.train.models.gguf_file import write_gguf
from torchtally.train.models.transformer import Transformer

gguf: Any = pytest.importorskip("gguf", reason="gguf writes the files")

SIZES = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocabulary": 257,
         "context": 128, "init_std": 0.3}  # fmt: skip
"""Initial matrices are large, so that logits differ."""
GPT2 = {"norm": "layer", "positions": "learned", "activation": "gelu_tanh", "has_bias": True,
        "kv_heads": 4, "ffn": 256, "context": 1024, "is_tied": True}  # fmt: skip
GEMMA = {"norm": "rms_plus_one", "activation": "geglu", "has_qk_norm": True, "layers": 7,
         "has_post_norms": True, "is_embedding_scaled": True, "window": 16, "global_every": 6,
         "local_rope_theta": 1e4, "rope_theta": 1e6, "head_dim": 32, "is_tied": True}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"has_bias": True},
    "llama 3.1": {"rope_stretch": RopeStretch(factor=8.0, original_context=32)},
    "stretched linearly": {"rope_stretch": RopeStretch(factor=2.0, original_context=1)},
    "qwen 2": {"has_qkv_bias": True},
    "qwen 3": {"has_qk_norm": True, "head_dim": 32},
    "mixtral": {"experts": 4, "active_experts": 2},
    "qwen 3 moe": {"has_qk_norm": True, "experts": 4, "active_experts": 2},
    "gemma 3": GEMMA,
    "gpt2": GPT2,
}


def decoder(**changes: object) -> Transformer:
    torch.manual_seed(2)
    model = Transformer(TransformerConfig(**{**SIZES, **changes})).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                value.add_(torch.randn_like(value), alpha=0.1)
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen 2", "gpt2"])
def test_transformers_computes_the_same(kind: str, tmp_path: Path) -> None:
    """Of the others it leaves out sizes: head dims, stretches, experts."""
    from transformers import AutoModelForCausalLM

    ours = decoder(**KINDS[kind])
    tokenizer = byte_tokenizer_text()  # transformers takes the vocabulary's size from it
    write_gguf(ours, tmp_path / "model.gguf", tokenizer_json=tokenizer, end_of_text=256)
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf")
    ids = torch.arange(40)[None] * 7 % 257
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_computes_the_same(kind: str, tmp_path: Path) -> None:
    llama_cpp: Any = pytest.importorskip("xllamacpp", reason="a build of llama.cpp")
    ours, file = decoder(**KINDS[kind]), tmp_path / "model.gguf"
    assert write_gguf(ours, file, tokenizer_json=byte_tokenizer_text(), end_of_text=256)
    with torch.no_grad():
        logits = ours(torch.tensor([[*b"def f(x): return x + 1"]]))[0, -1]
    expected = torch.log_softmax(logits, dim=-1)
    parameters = llama_cpp.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.warmup = str(file), 128, False
    answer = llama_cpp.Server(parameters).handle_completions(
        {"prompt": "def f(x): return x + 1", "n_predict": 1, "logprobs": 4, "temperature": 0}
    )
    if answer["choices"][0]["logprobs"] is None:
        pytest.skip("the first token is no text")
    (token,) = answer["choices"][0]["logprobs"]["content"]
    logprobs = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
    assert [*logprobs] == expected.topk(4).indices.tolist()
    for at, logprob in logprobs.items():
        assert logprob == pytest.approx(float(expected[at]), abs=0.02)  # its KV cache is float16


def test_bytes_of_quantised_weights(tmp_path: Path) -> None:
    """34 bytes for 32 numbers of Q8_0: a scale in float16, and 32 bytes."""
    model, file = decoder(), tmp_path / "model.gguf"
    write_gguf(model, file, weights="int8")
    matrices = sum(value.numel() for value in model.parameters() if value.dim() > 1)
    vectors = sum(value.numel() for value in model.parameters() if value.dim() == 1)
    size = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors)
    assert size == matrices // 32 * 34 + 4 * vectors


@pytest.mark.parametrize(
    ("changes", "weights", "message"),
    [
        ({"window": 16}, None, r"model\.window: llama\.cpp's mistral"),
        (GEMMA | {"global_every": 2}, None, r"model\.global_every: .* has 6, not 2"),
        ({}, "fp8", "--weights fp8: GGUF has int8"),
        ({"ffn": 100}, "int4", "int4: width and ffn must be multiples of 32"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(
    changes: dict[str, Any], weights: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        write_gguf(decoder(**changes), tmp_path / "model.gguf", weights=weights)
    assert not list(tmp_path.iterdir())
