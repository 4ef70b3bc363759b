"""`tally run --real-values`: what a script for a GPU makes of its first step, for real."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.run_tally import tally_run
from torchtally.errors import ScriptError
from torchtally.number_formats import choose_formats
from torchtally.number_formats.statistics import tensor_statistics
from torchtally.numerics import first_step
from torchtally.numerics.first_step import FirstStep, shrunk
from torchtally.virtual.on_host import on_host

SCRIPT = """\
import sys
import torch
from torch import nn

class Cruncher(nn.Module):
    def __init__(self):
        super().__init__()
        width, scale = 16384, float(sys.argv[1])
        self.first = nn.Linear(width, 32, bias=False)
        self.second = nn.Linear(32, 8)
        nn.init.normal_(self.first.weight, std=scale)
    def forward(self, x):
        return self.second(self.first(x))

assert torch.cuda.is_available() and "H100" in torch.cuda.get_device_name()
torch.manual_seed(0)
device = torch.device("cuda", 0)
model = torch.compile(Cruncher().to(0))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
open("log.txt", "w").write("begun")
for step in range(100):
    x = torch.randn(ROWS, 16384).pin_memory().to(device, non_blocking=True)
    y = torch.zeros(ROWS, 8, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=len(sys.argv) > 2):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    raise SystemExit("after the first backward pass")
"""


def real(folder: Path, *arguments: str, rows: int = 2, code: int = 0) -> tuple[Any, str]:
    (folder / "train.py").write_text(SCRIPT.replace("ROWS", str(rows)))
    run = tally_run(
        "--real-values", "--json", "real.json", "--replace", "train.py", *arguments, cwd=folder
    )
    assert run.code == code, run.stderr
    assert not (folder / "log.txt").exists()
    assert not (folder / "run.tally").exists()
    return json.loads((folder / "real.json").read_text()), run.stderr


def test_deviations_after_two_initialisations(tmp_path: Path) -> None:
    """A sum of 16384 products of normal numbers has the deviation 128; of weights over 128, 1."""
    large, text = real(tmp_path, "1")
    first, _ = large["layer_outputs"]
    assert (first["tensor_name"], first["dtype"]) == ("first", "float32")
    assert first["standard_deviation"] == pytest.approx(128, rel=0.25)  # of 64 numbers
    assert large["shrunk"] == []
    assert large["ended_early"] == ""
    names = [each["tensor_name"] for each in large["gradients"]]
    assert names == ["first.weight", "second.weight", "second.bias"]
    assert "Outputs of layers" in text
    assert "nvfp4" in text
    small, _ = real(tmp_path, str(1 / 128), "bf16")
    ratio = first["standard_deviation"] / small["layer_outputs"][0]["standard_deviation"]
    assert ratio == pytest.approx(128, rel=0.01)  # the same draws, in bf16
    assert small["layer_outputs"][0]["dtype"] == "bfloat16"


def test_a_loss_outside_of_the_model_has_another_batch(tmp_path: Path) -> None:
    """Outputs are counted; the script ends where its targets are not of the shrunk batch."""
    document, text = real(tmp_path, "1", rows=64, code=1)
    assert document["shrunk"] == ["Cruncher: (64, 16384) to (2, 16384)"]
    assert [each["elements"] for each in document["layer_outputs"]] == [64, 16]
    assert document["gradients"] == []
    assert "must match the size of tensor b" in document["ended_early"]
    assert "ended before its backward pass" in text


def test_what_is_of_a_simulation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    run = tally_run("--real-values", "--brief", "train.py", cwd=tmp_path)
    assert (run.code, "--brief is of a simulation" in run.stderr) == (2, True)
    run = tally_run("--real-values", "-o", "a.tally", "train.py", cwd=tmp_path)
    assert (run.code, "--output is of a simulation" in run.stderr) == (2, True)
    run = tally_run("--real-values", "train.py", cwd=tmp_path, gpu="8xH100-SXM")
    assert (run.code, "one process" in run.stderr) == (2, True)
    run = tally_run("--real-values", "train.py", cwd=tmp_path)
    assert (run.code, "0 outputs of layers" in " ".join(run.stderr.split())) == (1, True)


def test_weights_over_the_machine_are_refused_with_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_step, "MEMORY_SHARE", 0.0)
    step = FirstStep((), lambda: None)
    with step.watching_weights(), pytest.raises(ScriptError, match=r"weights of 4\.00 MiB and"):
        torch.nn.Linear(1024, 1024)
    torch.nn.Linear(8, 8)


def test_rows_and_tokens_are_cut() -> None:
    assert shrunk(torch.zeros(64, 1024)).shape == (2, 1024)
    assert shrunk(torch.zeros(12, 1024, dtype=torch.int64)).shape == (2, 128)
    small = torch.zeros(2, 100, dtype=torch.int64)
    assert shrunk(small) is small
    assert shrunk(torch.tensor(3)).ndim == 0


def test_a_gpu_is_the_host_and_other_texts_are_themselves() -> None:
    assert [on_host(each) for each in ("cuda", "cuda:1", torch.device("cuda", 0))] == ["cpu"] * 3
    assert [on_host(each) for each in ("cudagraphs", "sum", None)] == ["cudagraphs", "sum", None]


def test_the_standard_deviation_is_numpys() -> None:
    values = np.random.default_rng(0).normal(3, 2, (7, 64)).astype(np.float32)
    values[0, :3] = 0, np.inf, np.nan
    statistics = tensor_statistics(
        "x", "float32", lambda: [values[:3], values[3:]], choose_formats(["bf16"])
    )
    expected = values[np.isfinite(values)].astype(np.float64).std()
    assert statistics.standard_deviation == pytest.approx(expected)


TWO_MODELS = """\
import torch
from torch import nn

models = [nn.Sequential(nn.Linear(4, 4, bias=False)).cuda() for _ in range(3)]
x = torch.ones(2, 4, device="cuda")
for model in models:
    x = model(x)
x = models[0][0](x)
(x * float("nan")).sum().backward()
"""


def test_each_model_has_gradients_and_what_is_not_finite_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_MODELS)
    run = tally_run("--real-values", "--json", "real.json", "train.py", cwd=tmp_path)
    document = json.loads((tmp_path / "real.json").read_text())
    names = ["0.weight", "Sequential_2.0.weight", "Sequential_3.0.weight"]
    assert [each["tensor_name"] for each in document["gradients"]] == names
    assert [each["tensor_name"] for each in document["layer_outputs"]] == [
        "0", "Sequential_2.0", "Sequential_3.0", "0",
    ]  # fmt: skip
    assert "left out of what is below: 48 of 48 numbers of gradients" in " ".join(
        run.stderr.split()
    )
