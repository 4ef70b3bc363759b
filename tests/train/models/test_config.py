"""Configs are checked by key, and the closed forms know the same model to the parameter."""

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from torchtally.errors import UsageError
from torchtally.plan.architecture.weights import weights_of
from torchtally.train.models.config import RopeStretch, TransformerConfig
from torchtally.train.models.presets import PRESETS, preset
from torchtally.train.models.transformer import Transformer

SMALL = TransformerConfig(
    layers=2, width=16, heads=4, kv_heads=2, ffn=24, vocabulary=11, context=8
)  # fmt: skip

WRONG: dict[str, dict[str, Any]] = {
    "layers": {"layers": 0},
    "width": {"width": -16},
    "vocabulary": {"vocabulary": 11.0},
    "context": {"context": True},
    "window": {"window": 0},
    "heads: 3 does not divide the width 16": {"heads": 3},
    "kv_heads: 3 does not divide 4 heads": {"kv_heads": 3},
    "even head dim": {"heads": 16, "kv_heads": 16},
    "norm: expected rms, rms_plus_one, layer, got 'batch'": {"norm": "batch"},
    "positions": {"positions": "alibi"},
    "head_dim": {"head_dim": 0},
    "active_experts: 3 of 2 experts": {"experts": 2, "active_experts": 3},
    "active_experts: None of 2 experts": {"experts": 2},
    "logit_cap": {"logit_cap": 0.0},
    "activation: expected swiglu, geglu, gelu, gelu_tanh, got 'relu'": {"activation": "relu"},
    "dropout": {"dropout": 1.0},
    "rope_theta": {"rope_theta": 0.0},
    "norm_eps": {"norm_eps": float("nan")},
}


def as_from_a_file(changes: dict[str, Any]) -> TransformerConfig:
    """Past the check of types that only these tests have: a file's values are of any type."""
    config = object.__new__(TransformerConfig)
    for name, value in {**asdict(SMALL), **changes}.items():
        object.__setattr__(config, name, value)
    config.__post_init__()
    return config


@pytest.mark.parametrize(("message", "changes"), WRONG.items())
def test_what_cannot_be_is_refused_by_its_key(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        as_from_a_file(changes)


@pytest.mark.parametrize("changes", [{"factor": 0.5}, {"factor": 8.0, "low_factor": 4.0}])
def test_a_stretch_that_cannot_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="rope_stretch: factor"):
        RopeStretch(**changes)  # type: ignore[arg-type]


def test_what_can_be_is_not_refused() -> None:
    assert as_from_a_file({"window": 3}) == replace(SMALL, window=3)


KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"is_tied": True},
    "biases": {"has_bias": True},
    "layer norm": {"norm": "layer"},
    "layer norm with biases": {"norm": "layer", "has_bias": True},
    "learned positions": {"positions": "learned"},
    "gelu": {"activation": "gelu"},
    "all heads": {"kv_heads": 4},
    "own head dim": {"head_dim": 6},
    "qwen 2": {"has_qkv_bias": True},
    "qwen 3": {"has_qk_norm": True},
    "gemma 3": {
        "norm": "rms_plus_one", "activation": "geglu", "has_post_norms": True, "has_qk_norm": True,
        "window": 4, "global_every": 2,
    },
}  # fmt: skip


def assert_counted(config: TransformerConfig) -> None:
    """Every tensor has the shape that the closed forms list, and there is no other."""
    with torch.device("meta"):
        model = Transformer(config)
    counts = Counter(tuple(parameter.shape) for parameter in model.parameters())
    listed: Counter[tuple[int, ...]] = Counter()
    for weight in weights_of(config.model()):
        listed[weight.shape] += weight.count
    assert counts == listed


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_the_closed_forms_count_its_parameters(changes: dict[str, Any]) -> None:
    assert_counted(replace(SMALL, **changes))


@pytest.mark.parametrize("name", PRESETS)
def test_the_closed_forms_count_every_preset(name: str) -> None:
    assert_counted(PRESETS[name])


def test_the_closed_forms_count_a_mixture() -> None:
    """They have the experts of a layer in one tensor, as transformers has in memory."""
    config = replace(SMALL, experts=3, active_experts=2)
    with torch.device("meta"):
        model = Transformer(config)
    listed = sum(weight.elements for weight in weights_of(config.model()))
    assert sum(parameter.numel() for parameter in model.parameters()) == listed
    (router, *_) = (w for w in weights_of(config.model()) if w.shape == (3, 16))
    assert router.count == 2
    assert listed - sum(w.elements for w in weights_of(SMALL.model())) == 2 * (
        2 * 3 * 16 * 24 + 3 * 16
    )


def test_what_else_the_closed_forms_know() -> None:
    model = replace(SMALL, window=4, positions="learned", dropout=0.5).model("mine")
    (kind,) = model.kinds
    assert (model.name, model.positions, model.context, model.dropout) == ("mine", 8, 8, 0.5)
    assert kind.attention.window == 4  # type: ignore[union-attr]
    assert not kind.attention.is_rotary  # type: ignore[union-attr]
    assert kind.feed_forward.activation == "silu"


PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama-8b": 8_030_261_248,
    "llama-70b": 70_553_706_496,
}
"""Elements of the checkpoints on Hugging Face."""


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_presets_have_the_parameters_of_the_published_models(name: str, parameters: int) -> None:
    assert sum(weight.elements for weight in weights_of(preset(name).model())) == parameters


@pytest.mark.parametrize(("name", "millions"), [("1m", 1), ("10m", 10), ("100m", 100)])
def test_small_presets_are_as_large_as_they_say(name: str, millions: int) -> None:
    parameters = sum(weight.elements for weight in weights_of(preset(f"llama-{name}").model()))
    assert parameters == pytest.approx(millions * 1e6, rel=0.06)


def test_a_preset_with_changes() -> None:
    assert preset("llama-1m", context=64) == replace(PRESETS["llama-1m"], context=64)


def test_an_unknown_preset_names_the_near_ones() -> None:
    with pytest.raises(UsageError, match="gpt2-124m"):
        preset("gpt2-124")
