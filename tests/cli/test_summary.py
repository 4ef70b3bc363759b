"""`tally summary` as a user meets it: models by name, inputs, errors."""

import json
from pathlib import Path

import pytest

from torchtally.cli import main
from torchtally.cli.summary import PRECISIONS, TREE_LEVELS
from torchtally.models import precision
from torchtally.views.model_summary import DEPTH

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, *, bias=False):
        super().__init__()
        self.fc = nn.Linear(width, 8, bias=bias)

    def forward(self, x, scale=None):
        assert torch.cuda.is_available()
        return self.fc(x)

class models:
    small = Net(2)

not_a_model = 3

def frozen():
    return Net().requires_grad_(False)
"""
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 32,
}  # fmt: skip
LLAMA_PARAMETERS = 2 * 100 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TALLY_GPU", "A100-SXM")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["summary", *words, "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_a_class_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net", "--input", "2x4", "--precision", "as-is"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("fits A100-SXM\n  peak memory ")
    assert "Net: 32 parameters, called with 2x4:float32" in out
    assert "      32    fc: Linear " in out
    assert max(map(len, out.splitlines())) <= 80
    assert err == "tally: no --gpu: A100-SXM, by TALLY_GPU\n"


def test_arguments_of_the_class(capsys: pytest.CaptureFixture[str]) -> None:
    """6 * 8 weights and 8 biases; 2 rows: 2 * 2 * 6 * 8 FLOPs, and the bias's additions."""
    words = ("net.py:Net(6, bias=True)", "--input", "x=2x6", "--eval", "--precision", "as-is")
    printed = document(capsys, *words)
    assert printed["parameters"] == 6 * 8 + 8
    assert printed["flops_forward"] == 2 * 2 * 6 * 8
    assert printed["is_training"] is False


def test_a_model_that_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "net.py:models.small", "--input", "2x2")["parameters"] == 2 * 8


def test_an_installed_module(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("torch.nn:Linear(3, 4)", "--input", "2x3", "--optimizer", "none")
    assert document(capsys, *words)["parameters"] == 3 * 4 + 4


@pytest.mark.thorough
@pytest.mark.parametrize("place", [".", "config.json"])
def test_a_configuration_of_transformers(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = document(capsys, place, "--input", "2x16")
    assert printed["parameters"] == LLAMA_PARAMETERS
    assert printed["inputs"] == "input_ids 2x16:int64, labels 2x16:int64"


def test_a_configuration_knows_its_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    printed = document(capsys, "config.json", "--eval")
    assert printed["inputs"] == "input_ids 1x32:int64"


def test_a_known_model_has_its_class_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    printed = document(capsys, "gpt2", "--eval", "--input", "1x16")
    assert printed["parameters"] == 124_439_808


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["net.py:Nett", "--input", "2x4"], 2, "net.py has no Nett. Did you mean Net?"),
        (["none.py:Net", "--input", "2x4"], 2, "none.py: no such file."),
        (["none.of:Net", "--input", "2x4"], 2, "none.of: no such module, from "),
        (["net.py:Net(open('x'))", "--input", "2x4"], 2, "does not name a model."),
        (["net.py:not_a_model", "--input", "2x4"], 2, "TypeError: 'int' object is not callable"),
        (["net.py:Net"], 2, "missing inputs. Give their shapes and dtypes: --input 4x512:int64"),
        (["net.py:Net", "--input", "x=2", "--input", "x=3"], 2, "--input x is given twice."),
        (["net.py:Net", "--input", "2x5"], 2, "net.py:Net: RuntimeError: a and b must have same"),
        (["net.py:Net", "--input", "2x4", "--optimizer", "adm"], 2, "unknown optimizer 'adm'."),
        (["net.py:Net", "--input", "2x4", "--optimizer", "adm"], 2, "none: --optimizer none."),
        (
            ["net.py:frozen", "--input", "2x4"],
            2,
            "every parameter is frozen.\nFor a forward pass alone give --eval.",
        ),
        (["no/config.json"], 2, "no/config.json: cannot be read as JSON"),
        (["resnet50"], 2, "timm is needed, and cannot be imported"),
    ],
)
def test_mistakes_are_messages(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    assert main(["summary", *words]) == code
    err = capsys.readouterr().err
    assert "tally: error: " in err
    assert message in err
    assert "Traceback" not in err


def test_what_a_model_raises_is_shown_with_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["summary", "net.py:Net", "--input", "2x5"])
    assert "net.py:11. Does --input match what the model expects?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": 1e308}, "hidden_size: expected a whole number, found '1e+308'"),
        ({"vocab_size": "x"}, "vocab_size: expected a whole number, found 'x'"),
        ({"hidden_size": -64}, "hidden_size: expected at least 1, found '-64'"),
        ({"num_attention_heads": 0}, "num_attention_heads: expected at least 1, found '0'"),
        ({"num_hidden_layers": -3}, "num_hidden_layers: expected at least 0, found '-3'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected at most 10,000, found"),
        ({"intermediate_size": 10**30}, "intermediate_size: expected at most"),
        ({"text_config": {"n_layer": True}}, "text_config.n_layer: expected a whole number"),
        ({"rms_norm_eps": "x"}, "transformers rejects it: Validation error for field 'rms_norm"),
    ],
)
def test_a_configuration_that_no_model_has_names_its_key(
    changed: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changed))
    assert main(["summary", "config.json"]) == 2
    err = capsys.readouterr().err
    assert f"tally: error: config.json: {message}" in err
    assert "Traceback" not in err


def test_json_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in [
        ("{}", "no model_type"),
        ("[", "cannot be read as JSON"),
        ('{"model_type": "nothing"}', "transformers rejects it"),
        ('{"model_type": "llama", "architectures": ["Other"]}', "has no class Other"),
    ]:
        (tmp_path / "bad.json").write_text(text)
        assert main(["summary", "bad.json"]) == 2
        assert message in capsys.readouterr().err


def test_the_parsers_constants_are_the_librarys() -> None:
    assert tuple(precision.PRECISIONS) == PRECISIONS
    assert TREE_LEVELS == DEPTH


def test_columns_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["summary", "net.py:Net", "--input", "2x4", "--columns", "output,module,parameters"]
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["32", "2x8", "fc:", "Linear"] in lines
    assert main([*words[:-1], "outputs"]) == 2
    assert "no column 'outputs'. Did you mean output" in capsys.readouterr().err


def test_the_trace_of_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "net.py:Net", "--input", "2x4", "-o", "net.tally"]) == 0
    assert main(["show", "net.tally", "--step", "2", "--by", "module"]) == 0
    assert "fc" in capsys.readouterr().out
