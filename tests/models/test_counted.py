"""Families without a closed form are counted in their own class of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.models.counted_cases import CASES
from torchtally.chips import chip
from torchtally.cli import main, plan_request
from torchtally.errors import UsageError
from torchtally.models.calls import call_of
from torchtally.models.counted import count_model
from torchtally.models.inputs import InputSpec
from torchtally.models.samples import ModelSample
from torchtally.models.sources import model_source
from torchtally.plan.counted import CountedModel
from torchtally.plan.recipes import recipe

pytestmark = pytest.mark.one_case_in(4)

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


def counted_in(path: str, sample: ModelSample | None = None) -> CountedModel:
    return count_model(path, sample or ModelSample(), recipe("fp32"), chip("H100-SXM"))


@pytest.mark.thorough
def test_experts_that_a_token_meets_and_those_that_it_does_not(tmp_path: Path) -> None:
    """Four layers of 8 experts, each of three matrices of 16 x 48: 6 of 8 are idle."""
    counted = counted_in(written(tmp_path, HYBRID))
    assert counted.name == "Lfm2MoeForCausalLM"
    assert counted.parameters - counted.active == 4 * 6 * 3 * 16 * 48


@pytest.mark.thorough
def test_a_shared_embedding_counts_once(tmp_path: Path) -> None:
    """T5's is that of encoder, decoder and head: 101 x 48. Each layer has four products of
    attention of 48 x 48, the decoder's twice as many, and two of 48 x 56; norms and positions.
    """
    attention, feed_forward, norm, positions = 4 * 48 * 48, 2 * 48 * 56, 48, 32 * 6
    encoder = 2 * (attention + feed_forward + 2 * norm) + norm + positions
    decoder = 2 * (2 * attention + feed_forward + 3 * norm) + norm + positions
    counted = counted_in(written(tmp_path, ENCODER_DECODER))
    assert counted.parameters == counted.active == 101 * 48 + encoder + decoder


def test_a_mixture_that_does_not_say_how_many(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("torchtally.models.counted.ACTIVE_KEYS", ())
    with pytest.raises(UsageError, match="number of active experts"):
        counted_in(written(tmp_path, HYBRID))


@pytest.mark.thorough
def test_a_plan_says_where_its_numbers_are_from(tmp_path: Path, capsys: Capture) -> None:
    path = written(tmp_path, HYBRID)
    training = ("--tokens", "1B", "--gpus", "H100-SXM", "--mfu", "0.4")
    assert main(["plan", path, *training, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "transformers' Lfm2MoeForCausalLM" in " ".join(document["assumptions"])
    step = counted_in(path).step
    assert step is not None
    (flops,) = (each for each in document["figures"] if each["name"] == "training FLOPs")
    assert flops["value"] == pytest.approx(step.model_flops / step.tokens * 10**9)


def test_a_class_with_other_inputs_has_its_parameters_alone(tmp_path: Path) -> None:
    """Of sound as samples, which nobody has said how to make."""
    counted = counted_in(written(tmp_path, {"model_type": "wav2vec2", "hidden_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 56}))  # fmt: skip
    assert counted.step is None
    assert "it takes input_values" in counted.why_not
    assert "tally summary" in counted.why_not
    assert counted.parameters > 2 * 48 * 56


@pytest.mark.thorough
def test_layouts_need_a_shape(tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", written(tmp_path, HYBRID), "--gpus", "2xH100-SXM"]) == 2
    assert "Lfm2MoeForCausalLM was counted on one chip" in capsys.readouterr().err
    assert main(["plan", written(tmp_path, HYBRID), "--gpus", "2xH100-SXM", "--search"]) == 2
    assert "which Lfm2MoeForCausalLM lacks" in capsys.readouterr().err


@pytest.mark.parametrize("has_transformers", [True, False])
def test_a_family_that_nobody_knows_stays_an_error(
    has_transformers: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_transformers:
        monkeypatch.setattr(plan_request, "find_spec", lambda name: None)
    assert main(["plan", written(tmp_path, SMALL | {"model_type": "lama"})]) == 2
    message = capsys.readouterr().err
    assert "Did you mean llama" in message
    assert ("Install transformers" in message) is not has_transformers


def on_the_host(value: Any) -> Any:
    """What a description describes, as a tensor with data."""
    if isinstance(value, InputSpec):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {name: on_the_host(inner) for name, inner in value.items()}
    return value


def flops_on_the_host(path: str, sample: ModelSample) -> int:
    """Of the class's products, forward and backward, by PyTorch's own counter on the CPU.

    Attention as plain products: the fused backward pass computes scores again.
    """
    source = model_source(path)
    with torch.device("meta"):
        described = source.build()
    call, model = call_of(described, sample), source.build()
    inputs = {name: on_the_host(value) for name, value in call.inputs.items()}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        output = model(**inputs)
        parts = dict(output) if isinstance(output, dict) else vars(output)
        ends = [parts[name] for name in ("loss", "logits") if parts.get(name) is not None][:1]
        ends = ends or [part for part in parts.values() if isinstance(part, torch.Tensor)]
        sum(end.sum() for end in ends if end.requires_grad).backward()
    return int(counter.get_total_flops())


UNCOMPARED = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}
"""Their towers do not run under PyTorch's counter."""


@pytest.mark.one_case_in(8)
@pytest.mark.parametrize("family", sorted(CASES.keys() - UNCOMPARED))
def test_a_step_has_the_flops_that_the_class_has_on_the_host(family: str, tmp_path: Path) -> None:
    path, sample = written(tmp_path, CASES[family]), SMALLER.get(family, ModelSample(batch=2))
    counted = counted_in(path, sample)
    assert counted.step is not None, counted.why_not
    assert counted.step.model_flops == pytest.approx(flops_on_the_host(path, sample), rel=0.02)
    assert 0 < counted.step.bytes_saved <= counted.step.working_bytes
    assert sum(part.parameters for part in counted.step.parts) == counted.parameters


SMALLER = {
    "t5": ModelSample(source=32, sequence=16),
    "flux": ModelSample(images=(1, 128), source=16),
    "qwen2_audio": ModelSample(sequence=64),
}


@pytest.mark.thorough("the sums by hand beside it, of other models")
def test_a_transformer_for_diffusion_by_hand(tmp_path: Path) -> None:
    """DiT-XL/2 has 118.64 G multiply-adds at 256 x 256 (Peebles and Xie 2022, arXiv 2212.09748,
    table 4): each is two FLOPs. Its layers have 28 x 18 x 1152 ** 2 weights, and biases.
    """
    keys = CASES["dit"] | {
        "num_attention_heads": 16, "attention_head_dim": 72, "num_layers": 28, "sample_size": 32,
        "norm_num_groups": 32, "num_embeds_ada_norm": 1000,
    }  # fmt: skip
    step = counted_in(written(tmp_path, keys)).step
    assert step is not None
    assert step.flops_forward == pytest.approx(2 * 118.64e9, rel=0.005)
    (blocks,) = (part for part in step.parts if part.name == "transformer_blocks")
    assert blocks.parameters > 28 * 18 * 1152**2


@pytest.mark.thorough("the sums by hand beside it, of other models")
def test_images_count_the_tower_that_a_plan_leaves_out(tmp_path: Path, capsys: Capture) -> None:
    """Four patches of 8 pixels a side: 16 tokens an image."""
    path = written(tmp_path, CASES["llava"])
    assert main(["plan", path, "--images", "2x32", "--gpus", "H100-SXM", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "32 image tokens, 1024 text tokens" in " ".join(document["assumptions"])
    parts = {row["part"]: row for row in document["tables"][1]["rows"]}
    assert parts["model.vision_tower"]["parameters"] > 0
    memory, capacity = document["figures"][:2]
    assert memory["value"] < capacity["value"]
    counted = counted_in(path, ModelSample(images=(2, 32)))
    held = sum(row["bytes"] for row in document["tables"][0]["rows"])
    assert memory["value"] == held > 16 * counted.parameters


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("bert", ("--images", "32"), "BertForMaskedLM takes no images"),
        ("vit", ("--sequence", "8"), "takes no sequence of tokens"),
        ("vit", ("--tokens", "1B", "--gpus", "H100-SXM", "--mfu", "0.4"), "is not a text model"),
        ("whisper", ("--audio", "40s"), "takes up to 1 s"),
        ("qwen2_vl", ("--images", "30"), "a multiple of 8"),
        (
            "llava",
            ("--images", "2x32", "--sequence", "32"),
            "is too short: its images take 32 tokens",
        ),
        ("unet", ("--images", "100"), "a multiple of 8"),
    ],
)
def test_a_sample_that_a_class_does_not_take(
    family: str, options: tuple[str, ...], message: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["plan", written(tmp_path, CASES[family]), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_images_that_cannot_be_read(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "llava.json", "--images", "big"])
    assert "give COUNTxPIXELS" in " ".join(capsys.readouterr().err.split())
