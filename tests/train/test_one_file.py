"""A training as one file of plain Python: executed, it gives the losses of `tally train`."""

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.train.data.files import write_raw
from tests.train.training import TINY, language, run
from torchtally.errors import UsageError
from torchtally.train.config import config_of
from torchtally.train.one_file import one_file

GPT2: dict[str, Any] = {
    **TINY, "kv_heads": 4, "norm": "layer", "positions": "learned", "activation": "gelu_tanh",
    "has_bias": True, "dropout": 0.2,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "Llama, tied, stretched": {
        "model": {**TINY, "is_tied": True, "rope_stretch": {"factor": 4.0, "original_context": 8}},
        "micro_batch": 3, "sequence": 16, "learning_rate": {"warmup_steps": 2, "floor": 0.1},
    },
    "Mistral, AdaGrad": {
        "model": {**TINY, "window": 8, "recompute": "full"}, "clip_norm": None,
        "optimizer": {"name": "adagrad", "weight_decay": 0.1, "decayed_on": "all"},
        "learning_rate": {"shape": "wsd", "decay_steps": 3, "decay_shape": "sqrt"},
    },
    "GPT-2, SGD, two files": {
        "model": GPT2, "loss_chunk_tokens": 0, "seed": 7,
        "data": {"train": ["one.bin", "two.bin"], "dtype": "uint16", "order": "random",
                 "stride": 5},
        "optimizer": {"name": "momentum", "nesterov": True},
        "learning_rate": {"shape": "constant"},
    },
    "bfloat16": {"precision": "bf16", "data": {"train": ["one.bin"], "dtype": "uint16",
                                               "order": "sequential"}},
}  # fmt: skip


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("kind", KINDS)
def test_its_losses_are_those_of_the_training(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, factor in (("one.bin", 31), ("two.bin", 77)):
        write_raw(tmp_path / name, [n * n % factor for n in range(900)])
    config = language(tmp_path, **KINDS[kind])
    text = one_file(config, "tiny.toml")
    assert "torchtally" not in text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "one.py", "exec"), {})
    losses = [(int(step), float(loss)) for step, loss in map(str.split, _lines(printed))]
    assert losses == run(config)[0].training
    # Another seed is another training: the comparison can fail.
    other = run(language(tmp_path, **{**KINDS[kind], "seed": 8}))[0].training
    assert losses != other


def _lines(printed: io.StringIO) -> list[str]:
    return printed.getvalue().splitlines()


def test_only_what_the_config_takes_is_in_it(tmp_path: Path) -> None:
    llama, gpt2 = (one_file(language(tmp_path, model=sizes), "x") for sizes in (TINY, GPT2))
    assert ("class RMSNorm" in llama, "class RMSNorm" in gpt2) == (True, False)


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": {"name": "muon"}}, {"precision": "fp16"}, {"task": "teacher"}],
    ids=str,
)
def test_what_it_cannot_have_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not supported by --source"):
        one_file(language(tmp_path, **changes), "x")


EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = re.compile(r"^FILES = .*$", re.M)
"""The tokens lie where they were prepared, and are as many as this Python's library has."""


def test_the_example_is_what_its_configuration_gives(tmp_path: Path) -> None:
    values = tomllib.loads((EXAMPLES / "byte_gpt.toml").read_text())
    (tmp_path / "text.txt").write_text("def f():\n    return 1\n" * 2000)
    values["data"]["text"] = [str(tmp_path / "text.txt")]
    values["log"]["folder"] = str(tmp_path / "run")
    written = one_file(config_of(values, "test"), "examples/byte_gpt.toml")
    example = (EXAMPLES / "byte_gpt.py").read_text()
    assert FILES.findall(example) != FILES.findall(written)
    assert FILES.sub("FILES = []", example) == FILES.sub("FILES = []", written)
