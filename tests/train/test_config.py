"""A config is checked before anything runs: every complaint names the file and the key."""

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.train.config import ModelConfig, TrainConfig, config_of, read_config
from torchtally.train.models.config import TransformerConfig

EXAMPLES = Path(__file__).parents[2] / "examples"

PLAIN: dict[str, Any] = {
    "steps": 10,
    "batch": 4,
    "model": {"preset": "llama-1m"},
    "data": {"text": ["<stdlib>"]},
}


def test_a_plain_config() -> None:
    config = config_of({**PLAIN, "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]}}, "plain.toml")
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.rows == 4
    assert config.tokens_of_sequence == config.model.transformer().context


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda example: example.stem)
def test_every_example_is_a_config(path: Path) -> None:
    config = read_config(path)
    assert config_of(_without_none(config.document()), str(path)) == config


def test_a_model_by_all_its_sizes() -> None:
    sizes = {"layers": 2, "width": 64, "heads": 4, "ffn": 128, "vocabulary": 257, "context": 32}
    decoder = config_of({**PLAIN, "model": sizes}, "x").model.transformer()
    assert (decoder.layers, decoder.kv_heads) == (2, 4)


def test_every_size_of_a_decoder_can_be_said() -> None:
    sizes = {field.name for field in fields(TransformerConfig)}
    assert sizes <= {field.name for field in fields(ModelConfig)}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no steps": ({"steps": None}, "missing required field `steps`"),
    "steps of nothing": ({"steps": 0}, "steps: expected a whole number above 0, got 0"),
    "a text for a number": (
        {"batch": "many"},
        "batch: expected a whole number above 0, got 'many'",
    ),
    "a key that is none": ({"step": 1}, "step: unknown key. Did you mean steps?"),
    "a table that is none": ({"modell": {}}, "modell: unknown key. Did you mean model?"),
    "a key in a table": ({"model": {"layerz": 1}}, "model.layerz: unknown key"),
    "an unknown preset": ({"model": {"preset": "llama-2m"}}, "llama-1m"),
    "half a model": ({"model": {"layers": 2}}, "model.width: is missing"),
    "a sequence too long": ({"sequence": 10**6}, "sequence: expected 1 to"),
    "a micro-batch too large": (
        {"micro_batch": 5},
        "micro_batch: expected 1 to 4 (the batch), got 5",
    ),
    "nothing to train on": ({"data": {}}, "data.train: nothing to train on"),
    "no such optimizer": ({"optimizer": {"name": "adamx"}}, "adamx"),
    "an optimizer's wrong key": (
        {"optimizer": {"name": "sgd", "betas": [0.9, 0.9]}},
        "sgd has no betas",
    ),
    "a negative warm-up": ({"learning_rate": {"warmup_steps": -1}}, "warmup_steps"),
    "no such precision": ({"precision": "fp12"}, "precision: expected auto, fp32"),
    "a word nearly right": ({"precision": "bf61"}, "got 'bf61'. Did you mean bf16?"),
    "no such recomputation": (
        {"model": {"preset": "llama-1m", "recompute": "some"}},
        "model.recompute: expected none, selective, full, got 'some'",
    ),
    "a negative norm": ({"clip_norm": -1.0}, "clip_norm: expected a number, 0 or more"),
    "rows of nothing": ({"micro_batch": 0}, "micro_batch: expected a whole number above 0"),
    "a teacher of nothing": ({"teacher": {"dim": 0}}, "teacher.dim: expected a whole number above"),
    "a key's value in an array": (
        {"data": {"train": ["x"], "weights": [0.0]}},
        "data.weights: expected an array of finite numbers above",
    ),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_mistake_is_named(key: str) -> None:
    change, said = WRONG[key]
    values = {name: value for name, value in {**PLAIN, **change}.items() if value is not None}
    with pytest.raises(UsageError) as error:
        config_of(values, "mine.toml")
    assert str(error.value).startswith("mine.toml: ")
    assert said in str(error.value)


def test_what_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("steps = = 3")
    with pytest.raises(UsageError, match=r"broken\.toml: cannot be read as a config in TOML"):
        read_config(path)
    with pytest.raises(UsageError, match=r"nowhere\.toml: cannot be read"):
        read_config(tmp_path / "nowhere.toml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
KEYS = st.sampled_from([field.name for field in fields(TrainConfig)])


@given(st.dictionaries(KEYS, JSON, max_size=5))
def test_whatever_is_given_is_a_config_or_a_complaint(values: dict[str, Any]) -> None:
    config: TrainConfig | None = None
    with suppress(UsageError):
        config = config_of({**PLAIN, **values}, "x")
    assert config is None or (config.steps >= 1 and config.batch >= config.rows >= 1)


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {
            key: _without_none(setting) for key, setting in values.items() if setting is not None
        }
    return list(values) if isinstance(values, tuple) else values


def test_logits_are_made_in_chunks_where_that_is_faster() -> None:
    plain = config_of(PLAIN, "x")
    assert (plain.chunk_tokens("cpu"), plain.chunk_tokens("cuda")) == (128, None)
    whole = config_of({**PLAIN, "loss_chunk_tokens": 0}, "x")
    assert whole.chunk_tokens("cpu") is None
    assert config_of({**PLAIN, "loss_chunk_tokens": 64}, "x").chunk_tokens("cuda") == 64


def test_a_run_shorter_than_its_warm_up_only_warms_up() -> None:
    """Four steps of a warm-up of 50: 1/4, 2/4, 3/4, and the full rate in the last one."""
    config = config_of({**PLAIN, "steps": 4, "learning_rate": {"warmup_steps": 50}}, "mine.toml")
    schedule = config.learning_rate.schedule(config.steps)
    assert [schedule.factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
