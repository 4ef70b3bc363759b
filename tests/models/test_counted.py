"""Families without a closed form are counted in their own class of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchtally.cli import main, plan
from torchtally.errors import UsageError
from torchtally.models.counted import count_model

Capture = pytest.CaptureFixture[str]

SMALL: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 3, "intermediate_size": 56, "head_dim": 8,
}  # fmt: skip
HYBRID = SMALL | {
    "model_type": "lfm2_moe", "architectures": ["Lfm2MoeForCausalLM"], "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 0,
    "layer_types": ["conv", "full_attention"] * 2,
}  # fmt: skip
ENCODER_DECODER: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 101,
    "d_model": 48, "d_kv": 8, "d_ff": 56, "num_layers": 2, "num_heads": 6,
    "is_encoder_decoder": True,
}  # fmt: skip


def written(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_experts_that_a_token_meets_and_those_that_it_does_not(tmp_path: Path) -> None:
    """Four layers of 8 experts, each of three matrices of 16 x 48: 6 of 8 are idle."""
    counted = count_model(written(tmp_path, HYBRID))
    assert counted.name == "Lfm2MoeForCausalLM"
    assert counted.parameters - counted.active == 4 * 6 * 3 * 16 * 48


def test_a_shared_embedding_counts_once(tmp_path: Path) -> None:
    """T5's is that of encoder, decoder and head: 101 x 48. Each layer has four products of
    attention of 48 x 48, the decoder's twice as many, and two of 48 x 56; norms and positions.
    """
    attention, feed_forward, norm, positions = 4 * 48 * 48, 2 * 48 * 56, 48, 32 * 6
    encoder = 2 * (attention + feed_forward + 2 * norm) + norm + positions
    decoder = 2 * (2 * attention + feed_forward + 3 * norm) + norm + positions
    counted = count_model(written(tmp_path, ENCODER_DECODER))
    assert counted.parameters == counted.active == 101 * 48 + encoder + decoder


def test_a_mixture_that_does_not_say_how_many(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("torchtally.models.counted.ACTIVE_KEYS", ())
    with pytest.raises(UsageError, match="how many of them a token meets"):
        count_model(written(tmp_path, HYBRID))


def test_a_plan_says_where_its_numbers_are_from(tmp_path: Path, capsys: Capture) -> None:
    path = written(tmp_path, HYBRID)
    training = ("--tokens", "1B", "--gpus", "H100-SXM", "--mfu", "0.4")
    assert main(["plan", path, *training, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "transformers' Lfm2MoeForCausalLM" in " ".join(document["assumptions"])
    active = count_model(path).active
    (flops,) = (each for each in document["figures"] if each["name"] == "training FLOPs")
    assert flops["value"] == 6 * active * 10**9


def test_layouts_need_a_shape(tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", written(tmp_path, HYBRID), "--gpus", "2xH100-SXM"]) == 2
    assert "Lfm2MoeForCausalLM has no row" in capsys.readouterr().err


@pytest.mark.parametrize("has_transformers", [True, False])
def test_a_family_that_nobody_knows_stays_an_error(
    has_transformers: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_transformers:
        monkeypatch.setattr(plan, "find_spec", lambda name: None)
    assert main(["plan", written(tmp_path, SMALL | {"model_type": "lama"})]) == 2
    message = capsys.readouterr().err
    assert "Did you mean llama" in message
    assert ("With transformers installed" in message) is not has_transformers
