"""Passes that are not run take the memory of those that were."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run_tally import TIMEOUT_S, environment

SCRIPT = """\
import sys, torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.count = 0
        self.kept = []

    def forward(self, x):
        CASE
        for layer in self.layers:
            x = torch.relu(layer(x))
        return {"out": x, "first": x[:1], "loss": x.sum()}

calls = []
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())

def evaluate():
    model.eval()
    for n in range(20):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=AUTOCAST):
            y = model(torch.empty(2048, 512, device="cuda"))
        assert y["first"].untyped_storage().data_ptr() == y["out"].untyped_storage().data_ptr()
        assert y["out"].device.type == "cuda" and y["out"].shape == (2048, 512)
        assert not y["loss"].requires_grad
    model.train()

evaluate()
for step in range(2):
    model(torch.empty(2048, 512, device="cuda"))["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
print(model.count, len(calls))
"""


def probe(folder: Path, case: str, *, autocast: bool = True, folds: bool = True) -> dict[str, Any]:
    script = SCRIPT.replace("CASE", case).replace("AUTOCAST", str(autocast))
    (folder / "train.py").write_text(script)
    asked = {
        "script": "train.py", "arguments": [], "is_module": False, "gpu": "H100-SXM", "steps": 2,
        "max_seconds": None, "nonzero_fraction": 1.0, "folds": folds, "lifeline": None,
        "what_ifs": [], "capabilities": [],
        "capacities": [[1 << 24, 1 << 24], [1 << 30, 1 << 30]], "answer": str(folder / "answer"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "torchtally.runs.probe", json.dumps(asked)], cwd=folder,
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads((folder / "answer").read_text())
    assert answer["ending"][0] == "steps", done.stderr
    return answer


PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "verdicts", "steps")


@pytest.mark.parametrize("autocast", [True, False])
def test_memory_is_the_same(tmp_path: Path, autocast: bool) -> None:
    """20 calls: the first one takes cuBLAS's workspace, two more show that they are alike."""
    folded = probe(tmp_path, "pass", autocast=autocast)
    run = probe(tmp_path, "pass", autocast=autocast, folds=False)
    assert folded["folded"] >= 15
    assert run["folded"] == 0
    assert [folded[peak] for peak in PEAKS] == [run[peak] for peak in PEAKS]
    assert [verdict["fits"] for verdict in folded["verdicts"]] == [False, True]


def test_scratch_memory_of_a_pass_that_is_not_run(tmp_path: Path) -> None:
    """Sorting a million numbers takes 20 MB and gives them back before the next operator."""
    case = "x = x + x.flatten().sort().values[:512] + x.flatten().sort().values[:512]"
    folded, run = probe(tmp_path, case), probe(tmp_path, case, folds=False)
    assert folded["folded"] >= 15
    assert [folded[peak] for peak in PEAKS] == [run[peak] for peak in PEAKS]


@pytest.mark.parametrize(
    "case",
    [
        "self.count += 1",
        "self.kept.append(0)",
        "calls.append(x)",
        "x[0].sum().item()",
        "self.layers[0].weight.mul_(1.0) if not self.training else None",
        "torch.ones(3).add_(1)",
    ],
    ids=["attribute", "list", "kept tensor", "value", "weight", "host"],
)
def test_what_a_pass_leaves_behind_keeps_it_from_being_folded(tmp_path: Path, case: str) -> None:
    assert probe(tmp_path, case)["folded"] == 0
