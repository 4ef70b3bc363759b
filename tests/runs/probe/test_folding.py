"""Passes that are not run take the memory of those that were."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.run_tally import TIMEOUT_S, environment
from tests.warm import warm_python
from torchtally.runs.children import Children
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import ProbeRequest, ProbeResult

pytestmark = pytest.mark.one_case_in(3)

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
        assert (y["out"] >= 0).all()  # after a ReLU: known without values
    model.train()

evaluate()
for step in range(2):
    model(torch.empty(2048, 512, device="cuda"))["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
print(model.count, len(calls))
"""


ENVIRONMENT = environment()
Probe = Callable[..., ProbeResult]


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """One server for all tests here: each probe is forked from it."""
    with warm_python(), Children("test", preload=PRELOAD) as children:
        yield children


@pytest.fixture
def probe(children: Children, tmp_path: Path) -> Probe:
    """Probes the script with a case put in."""

    def probe(case: str, *, autocast: bool = True, folds: bool = True) -> ProbeResult:
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("CASE", case).replace("AUTOCAST", str(autocast)))
        request = ProbeRequest(
            script=str(script), arguments=(), is_module=False, gpu="H100-SXM", steps=2,
            folds=folds, capacities=((1 << 24, 1 << 24), (1 << 30, 1 << 30)),
        )  # fmt: skip
        children.start("", request, environment=ENVIRONMENT)
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (ended := children.collect_ended(1.0)):
            assert time.monotonic() < deadline_s
        answer = ended[0].answer(ProbeResult)
        assert answer is not None, ended[0].output
        assert answer.ending == "steps", ended[0].output
        return answer

    return probe


PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "verdicts", "steps")


@pytest.mark.parametrize("autocast", [True, False])
def test_memory_is_the_same(probe: Probe, autocast: bool) -> None:
    """20 calls: the first one takes cuBLAS's workspace, two more show that they are alike."""
    folded = probe("pass", autocast=autocast)
    run = probe("pass", autocast=autocast, folds=False)
    assert folded.folded >= 15
    assert run.folded == 0
    assert [getattr(folded, peak) for peak in PEAKS] == [getattr(run, peak) for peak in PEAKS]
    assert [verdict.fits for verdict in folded.verdicts] == [False, True]


@pytest.mark.thorough
def test_scratch_memory_of_a_pass_that_is_not_run(probe: Probe) -> None:
    """Sorting a million numbers takes 20 MB and gives them back before the next operator."""
    case = "x = x + x.flatten().sort().values[:512] + x.flatten().sort().values[:512]"
    folded, run = probe(case), probe(case, folds=False)
    assert folded.folded >= 15
    assert [getattr(folded, peak) for peak in PEAKS] == [getattr(run, peak) for peak in PEAKS]


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
def test_what_a_pass_leaves_behind_keeps_it_from_being_folded(probe: Probe, case: str) -> None:
    assert probe(case).folded == 0
