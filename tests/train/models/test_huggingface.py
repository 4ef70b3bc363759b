"""Weights go to transformers and come back, and both compute the same logits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.train.models.test_transformer import GPT2, LLAMA, ids_of, model_of
from torchtally.errors import UsageError
from torchtally.plan.architecture.config import read_config as read_planner_config
from torchtally.plan.architecture.model import Experts
from torchtally.train.models.config import RopeStretch, TransformerConfig
from torchtally.train.models.huggingface import read_weights, write_weights
from torchtally.train.models.huggingface_config import read_config
from torchtally.train.models.transformer import Transformer

pytestmark = pytest.mark.one_case_in(3)

MISTRAL = replace(LLAMA, window=6)
GEMMA = replace(
    LLAMA, layers=4, norm="rms_plus_one", activation="geglu", is_tied=True, head_dim=16,
    has_qk_norm=True, has_post_norms=True, is_embedding_scaled=True, window=6, global_every=2,
    rope_theta=1e4, local_rope_theta=100.0, query_scalar=20, logit_cap=3.0,
    rope_stretch=RopeStretch(factor=8.0, original_context=1), norm_eps=1e-6,
)  # fmt: skip
KINDS = {
    "gpt2": GPT2,
    "gpt2 untied, exact gelu, odd width": replace(
        GPT2, is_tied=False, activation="gelu", ffn=40, norm_eps=1e-3, dropout=0.1
    ),
    "llama": LLAMA,
    "llama tied, with biases": replace(LLAMA, is_tied=True, has_bias=True, rope_theta=500.0),
    "llama with all heads": replace(LLAMA, kv_heads=4, norm_eps=1e-3),
    "llama 3.1": replace(
        LLAMA,
        rope_theta=50.0,
        rope_stretch=RopeStretch(factor=8.0, original_context=20, low_factor=0.5, high_factor=2.0),
    ),
    "llama, linear stretch": replace(
        LLAMA, rope_stretch=RopeStretch(factor=4.0, original_context=1)
    ),
    "llama 3.2": replace(
        LLAMA, head_dim=16, is_tied=True, rope_theta=5e5, rope_stretch=RopeStretch(factor=32.0)
    ),
    "mistral": MISTRAL,
    "mistral nemo": replace(LLAMA, head_dim=6, window=7, rope_theta=1e6),
    "qwen 2": replace(LLAMA, has_qkv_bias=True, is_tied=True, rope_theta=1e6, norm_eps=1e-6),
    "qwen 3": replace(LLAMA, has_qk_norm=True, head_dim=12, rope_theta=1e6, norm_eps=1e-6),
    "gemma 3": GEMMA,
    "gemma 3, one kind of layer": replace(GEMMA, global_every=None, rope_stretch=None),
    "mixtral": replace(LLAMA, experts=4, active_experts=2, rope_theta=1e6),
    "mixtral with a window": replace(LLAMA, experts=3, active_experts=1, window=6),
    "qwen 3 moe": replace(
        LLAMA, experts=4, active_experts=2, has_qk_norm=True, head_dim=12, ffn=20
    ),
}
kinds = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def of_transformers(folder: Path) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder).eval()
    return model


def theirs_at_random(folder: Path, config: TransformerConfig) -> nn.Module:
    """A model of transformers made from our config.json alone, saved by themselves."""
    write_weights(Transformer(config), folder)
    torch.manual_seed(5)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def assert_alike(ours: Transformer, theirs: nn.Module) -> None:
    ids = ids_of(ours.config)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)


@kinds
def test_ours_out_into_transformers(tmp_path: Path, config: TransformerConfig) -> None:
    model = model_of(config)
    write_weights(model, tmp_path)
    assert_alike(model, of_transformers(tmp_path))


@kinds
def test_theirs_into_ours(tmp_path: Path, config: TransformerConfig) -> None:
    theirs = theirs_at_random(tmp_path, config)
    ours = Transformer(read_config(tmp_path))
    read_weights(ours, tmp_path)
    assert_alike(ours, theirs)


def test_logits_of_other_weights_would_be_found(tmp_path: Path) -> None:
    write_weights(model_of(LLAMA), tmp_path)
    with pytest.raises(AssertionError):
        assert_alike(Transformer(LLAMA), of_transformers(tmp_path))


@kinds
def test_out_and_in_again_is_the_same_to_the_bit(tmp_path: Path, config: TransformerConfig) -> None:
    model = model_of(config)
    write_weights(model, tmp_path)
    trained_config = read_config(tmp_path)
    assert trained_config == (
        config if config.positions == "learned" else replace(config, dropout=0.0)
    )
    with torch.device("meta"):
        other = Transformer(trained_config)
    read_weights(other.to_empty(device="cpu"), tmp_path / "model.safetensors")
    assert_same(model, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def assert_same(a: Transformer, b: Transformer) -> None:
    for name, tensor in a.state_dict().items():
        assert torch.equal(tensor, b.state_dict()[name]), name


@kinds
def test_the_planner_reads_the_same_model(tmp_path: Path, config: TransformerConfig) -> None:
    write_weights(Transformer(config), tmp_path)
    theirs, ours = read_planner_config(tmp_path / "config.json"), config.model()
    assert (theirs.width, theirs.vocabulary, theirs.is_tied) == (
        ours.width, ours.vocabulary, ours.is_tied
    )  # fmt: skip
    feed_forward, mine = (model.kinds[0].feed_forward for model in (theirs, ours))
    if isinstance(feed_forward, Experts):
        # Which of them adapters are put on is transformers' matter.
        feed_forward = replace(feed_forward, are_all_linear=False)
    assert feed_forward == mine
    # Whether query, key and value are one matrix is each program's own choice.
    attention, own_attention = (model.kinds[0].attention for model in (theirs, ours))
    assert replace(attention, is_fused=True) == own_attention


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_are_kept_and_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    model = model_of(LLAMA).to(dtype)
    write_weights(model, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).dtype == dtype
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {
        dtype
    }
    other = Transformer(LLAMA)
    read_weights(other, tmp_path)
    assert_same(other, model.float())


def test_several_shards(tmp_path: Path) -> None:
    model: Any = theirs_at_random(tmp_path, LLAMA)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = Transformer(LLAMA)
    read_weights(ours, tmp_path)
    assert_alike(ours, model)


def test_gpt2_as_the_hub_has_it(tmp_path: Path) -> None:
    """Names of the bare model, masks among the weights, and the tied head once more."""
    model = model_of(GPT2)
    write_weights(model, tmp_path)
    file = tmp_path / "model.safetensors"

    def bare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        named["lm_head.weight"] = named["wte.weight"].clone()
        return named | {"h.0.attn.bias": torch.ones(1, 1, 24, 24).tril()}

    save_file(bare(load_file(file)), file)
    other = Transformer(GPT2)
    read_weights(other, tmp_path)
    assert_same(model, other)


Change = Callable[[dict[str, Tensor]], object]
Q, NORM = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
BROKEN: dict[str, Change] = {
    rf"missing: {Q}\.": lambda record: record.pop(Q),
    "not of this model: extra": lambda record: record.update(extra=torch.zeros(2)),
    rf"of another shape: {Q} \(32, 16\) for \(32, 32\)": lambda record: record.update(
        {Q: torch.zeros(32, 16)}
    ),
    "missing: .*, .*, .*, .*, .* and 25 more": lambda record: record.clear(),
    f"{NORM}: int64 is not a trainable": lambda record: record.update(
        {NORM: torch.zeros(32, dtype=torch.int64)}
    ),
}


@pytest.mark.parametrize(("message", "change"), BROKEN.items())
def test_a_wrong_tensor_is_named_and_nothing_is_read(
    tmp_path: Path, message: str, change: Change
) -> None:
    write_weights(model_of(LLAMA), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    model = Transformer(LLAMA)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UsageError, match=message):
        read_weights(model, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_tied_head_that_is_another_is_refused(tmp_path: Path) -> None:
    write_weights(model_of(GPT2), tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"lm_head.weight": torch.zeros(61, 32)}, file)
    with pytest.raises(UsageError, match="differs from the embedding"):
        read_weights(Transformer(GPT2), tmp_path)


def test_a_pickle_and_a_file_cut_short_are_refused(tmp_path: Path) -> None:
    model = model_of(LLAMA)
    torch.save(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="offset 0"):
        read_weights(model, tmp_path)
    write_weights(model, tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        read_weights(model, tmp_path)
    with pytest.raises(UsageError, match=r"no \.safetensors"):
        read_weights(model, tmp_path.parent)
    with pytest.raises(UsageError, match="there is no such file"):
        read_weights(model, tmp_path / "other.safetensors")


def test_a_model_without_memory_is_refused(tmp_path: Path) -> None:
    write_weights(model_of(LLAMA), tmp_path)
    with torch.device("meta"):
        model = Transformer(LLAMA)
    with pytest.raises(UsageError, match="call to_empty"):
        read_weights(model, tmp_path)


NOT_THERE: dict[str, dict[str, Any]] = {
    "nearest is gpt2, with kv_heads=4 instead of 2": {"kv_heads": 2},
    "gpt2, with head_size=8 instead of 16": {"head_dim": 16},
    "positions='learned' instead of 'rope'": {"positions": "rope"},
    "activation='gelu_tanh' instead of 'swiglu'": {"activation": "swiglu"},
    "has_bias=True instead of False": {"has_bias": False},
    "window=None instead of 4": {"window": 4},
}


@pytest.mark.parametrize(("message", "changes"), NOT_THERE.items())
def test_what_transformers_has_not_is_refused_before_anything_is_written(
    tmp_path: Path, message: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=message):
        write_weights(Transformer(replace(GPT2, **changes)), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_window_with_biases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nearest is llama, with window=None instead of 6"):
        write_weights(Transformer(replace(MISTRAL, has_bias=True)), tmp_path)


UNLIKE: dict[str, tuple[TransformerConfig, dict[str, Any]]] = {
    "model_type: 'phi3'": (LLAMA, {"model_type": "phi3"}),
    "attention_bias: True": (KINDS["qwen 3"], {"attention_bias": True}),
    "attn_logit_softcapping: 50": (GEMMA, {"attn_logit_softcapping": 50}),
    "layer_types: .*full_attention every 1 layers": (
        GEMMA, {"layer_types": ["full_attention", *["sliding_attention"] * 3]},
    ),
    "norm_topk_prob": (KINDS["qwen 3 moe"], {"norm_topk_prob": False}),
    "rope_parameters: 'yarn'": (LLAMA, {"rope_parameters": {"rope_type": "yarn"}}),
    "factor: expected a number, got None": (LLAMA, {"rope_parameters": {"rope_type": "llama3"}}),
    "partial_rotary_factor: 0.5": (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    "rope_scaling|rope_parameters: 'dynamic'": (
        LLAMA, {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2}},
    ),
    "rope_theta: expected .*, got 'much'": (LLAMA, {"rope_parameters": {"rope_theta": "much"}}),
    "attention_dropout: 0.1": (LLAMA, {"attention_dropout": 0.1}),
    "hidden_act: 'gelu'": (LLAMA, {"hidden_act": "gelu"}),
    "mlp_bias": (LLAMA, {"mlp_bias": True}),
    "scale_attn_by_inverse_layer_idx": (GPT2, {"scale_attn_by_inverse_layer_idx": True}),
    "activation_function: 'relu'": (GPT2, {"activation_function": "relu"}),
    "embd_pdrop and attn_pdrop": (GPT2, {"embd_pdrop": 0.5}),
    "num_hidden_layers": (LLAMA, {"num_hidden_layers": "three"}),
}  # fmt: skip


@pytest.mark.parametrize(("message", "case"), UNLIKE.items())
def test_a_config_that_computes_otherwise_is_refused_by_its_key(
    tmp_path: Path, message: str, case: tuple[TransformerConfig, dict[str, Any]]
) -> None:
    config, changes = case
    write_weights(Transformer(config), tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UsageError, match=rf"config\.json: .*({message})"):
        read_config(tmp_path)
