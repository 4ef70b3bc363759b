"""`tally plan CONFIG -o FILE`: the step as a trace, written out of recordings."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs.families import LLAMA
from torchtally.cli import main
from torchtally.trace import Trace

Capture = pytest.CaptureFixture[str]
WORDS = ("--gpus", "H100-SXM", "--micro-batch", "2", "--sequence", "128", "--recipe", "bf16")


@pytest.fixture
def config(tmp_path: Path) -> str:
    return written(tmp_path, {})


def written(folder: Path, changes: dict[str, Any]) -> str:
    values = LLAMA | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | changes
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_it_is_shown_as_a_run_is(config: str, tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "plan.tally")
    assert main(["plan", config, *WORDS, "-o", file]) == 0
    page = capsys.readouterr()
    source = "6 layers of LlamaForCausalLM (transformers"
    assert source in page.err
    assert source in " ".join(page.out.split())
    trace = Trace.load(file)
    assert trace.script.startswith(f"plan {config} --gpus H100-SXM")
    assert len(trace.step_ends) == 2
    assert main(["show", file, "--by", "line", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert "modeling_llama.py" in str(rows)
    assert "test_plan_trace.py" not in str(
        rows
    )  # what asked for the recording is none of its lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recipe", "mixed"), "recipe mixed needs a library"),
        (("--gpus", "8xH100-SXM"), "--gpus names 8"),
        (("--recompute", "op"), "--recompute full, or none"),
        (("--optimizer", "lion"), "torch.optim has no lion"),
        (("--tokens", "1T"), "--tokens changes nothing"),
        (("--search",), "--search changes nothing"),
        (("--explain",), "--explain changes nothing"),
    ],
)
def test_what_it_does_not_write_is_refused(
    words: tuple[str, ...], message: str, config: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["plan", config, *WORDS, *words, "-o", str(tmp_path / "plan.tally")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_known_model_has_its_own_configuration(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "plan.tally")
    assert main(["plan", "gpt2-124m", *WORDS, "-o", file]) == 0
    assert "12 layers of GPT2LMHeadModel" in capsys.readouterr().err
    parameters = [each for each in Trace.load(file).storages if each.is_trained]
    assert sum(each.requested_bytes for each in parameters) == 2 * 124_439_808


def test_adapters_are_those_of_peft(config: str, tmp_path: Path) -> None:
    """In 6 layers 8 x (384 + 384) elements for queries, 8 x (384 + 128) for values, in float32."""
    file = str(tmp_path / "plan.tally")
    lora = ("--lora", "8", "--lora-targets", "q_proj,v_proj")
    assert main(["plan", config, *WORDS, *lora, "-o", file]) == 0
    trained = [each for each in Trace.load(file).storages if each.is_trained]
    assert sum(each.requested_bytes for each in trained) == 4 * 6 * 8 * (768 + 512)


def test_a_target_that_the_class_does_not_have_is_named(
    config: str, tmp_path: Path, capsys: Capture
) -> None:
    lora = ("--lora", "8", "--lora-targets", "q_prj")
    assert main(["plan", config, *WORDS, *lora, "-o", str(tmp_path / "plan.tally")]) == 2
    assert "--lora-targets: PEFT rejects them" in capsys.readouterr().err


def test_a_model_without_a_configuration_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", "gpt-3", *WORDS, "-o", str(tmp_path / "plan.tally")]) == 2
    assert "its sizes alone are known" in " ".join(capsys.readouterr().err.split())


def test_layers_of_several_kinds_are_refused(tmp_path: Path, capsys: Capture) -> None:
    changes = {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "layer_types": ["full_attention"] * 5 + ["sliding_attention"],
    }
    path = written(tmp_path, changes)
    assert main(["plan", path, *WORDS, "-o", str(tmp_path / "plan.tally")]) == 1
    assert "do not come again" in capsys.readouterr().err
