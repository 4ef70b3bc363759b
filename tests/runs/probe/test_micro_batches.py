"""Training micro-batches that are not run take the memory of those that were."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.run_tally import TIMEOUT_S, environment
from torchtally.runs.children import Children
from torchtally.runs.probes import PRELOAD, Probes
from torchtally.runs.protocol import MISFOLDED, ProbeRequest, ProbeResult

SCRIPT = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    wide = False

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1024, 256)
        self.layers = nn.ModuleList(MODEL for _ in range(2))
        self.head = nn.Linear(256, 1024)

    def forward(self, x, y=None):
        h = self.embed(x)
        for layer in self.layers:
            h = LAYER
        if self.wide:
            h = h * torch.ones(4, 1, 1, 1, device="cuda")
        logits = self.head(h)
        if y is None:
            return logits
        return logits, cross_entropy(logits.reshape(-1, 1024), y.view(-1).repeat(1 + 3 * self.wide))

def batch(length=128):
    return torch.randint(1024, (8, length)).cuda(), torch.randint(1024, (8, length)).cuda()

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
x, y = batch()
for step in range(2):
    for micro in range(COUNT):
        LOOP
    optimizer.step()
    optimizer.zero_grad()
"""

ENCODER = "nn.TransformerEncoderLayer(256, 4, 1024, dropout=DROPOUT, batch_first=True)"
BLOCK = "nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))"
LOOP = """\
x, y = batch()
        loss = model(x, y)[1] / COUNT
        loss.backward()"""
NANO = """\
with torch.autocast("cuda", torch.bfloat16):
            logits, loss = model(x, y)
            loss = loss / COUNT
        x, y = batch()
        loss.backward()"""
OUTSIDE = """\
x, y = batch()
        out = model(x)
        loss = cross_entropy(out.view(-1, 1024), y.view(-1))
        loss.backward()"""

Probe = Callable[..., ProbeResult]


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """One server for all tests here: each probe is forked from it."""
    with Children("test", preload=PRELOAD) as children:
        yield children


@pytest.fixture
def probe(children: Children, tmp_path: Path) -> Probe:
    def probe(
        loop: str, model: str, layer: str, count: int, *, folds: bool, steps: int = 1
    ) -> ProbeResult:
        script = tmp_path / "train.py"
        text = SCRIPT.replace("MODEL", model).replace("LAYER", layer).replace("LOOP", loop)
        script.write_text(text.replace("COUNT", str(count)).replace("DROPOUT", "0.1"))
        request = ProbeRequest(
            script=str(script), arguments=(), is_module=False, gpu="H100-SXM", steps=steps,
            folds=folds, capacities=((1 << 26, 1 << 26), (1 << 30, 1 << 30)),
        )  # fmt: skip
        children.start("", request, environment=environment())
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (ended := children.collect_ended(1.0)):
            assert time.monotonic() < deadline_s
        answer = ended[0].answer(ProbeResult)
        assert answer is not None, ended[0].output
        assert answer.ending in ("steps", MISFOLDED), answer.message
        return answer

    return probe


def is_equal(folded: ProbeResult, run: ProbeResult) -> bool:
    return (folded.peak_allocated_bytes, folded.peak_reserved_bytes, folded.verdicts) == (
        run.peak_allocated_bytes, run.peak_reserved_bytes, run.verdicts
    )  # fmt: skip


FOLDED = {
    # (loop, model, layer, micro-batches a step, calls that are folded in two steps).
    # A step's first micro-batch makes the gradients; the two after it are compared.
    "encoder with dropout": (LOOP, ENCODER, "layer(h)", 6, 8),
    "autocast and prefetching": (NANO, ENCODER, "layer(h)", 6, 8),
    "loss outside of the model": (OUTSIDE, BLOCK, "h + layer(h)", 6, 8),
    "clipping after each": (
        f"{LOOP}\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        BLOCK, "layer(h)", 6, 8,
    ),
    "evaluation between": (
        f"{LOOP}\n        with torch.no_grad(): kept.append(model(x, y)[1])",
        BLOCK, "layer(h)", 6, 8,
    ),
    "two lengths in turn": (
        LOOP.replace("batch()", "batch(128 if micro % 2 else 64)"), BLOCK, "layer(h)", 9, 12,
    ),
    "a longer last one": (
        LOOP.replace("batch()", "batch(128 + 64 * (micro == 5))"), BLOCK, "layer(h)", 6, 6,
    ),
    "logits that are kept": (
        NANO.replace("x, y = batch()", "kept.append(logits.detach())"), BLOCK, "layer(h)", 6, 8,
    ),
    "an attribute set for the last one": (
        f"model.wide = micro == 5\n        {LOOP}", BLOCK, "layer(h)", 6, 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDED)
def test_folded_micro_batches_take_the_same_memory(case: str, probe: Probe) -> None:
    loop, model, layer, count, expected = FOLDED[case]
    folded = probe(loop, model, layer, count, folds=True, steps=2)
    assert is_equal(folded, probe(loop, model, layer, count, folds=False, steps=2))
    assert folded.folded == expected


NEVER = {
    "no accumulation": ("optimizer.zero_grad()\n        " + LOOP, BLOCK, "layer(h)"),
    "checkpointing": (LOOP, BLOCK, "checkpoint(layer, h, use_reentrant=False)"),
    "a hook of a parameter": (
        f"if not kept: kept.append(model.head.weight.register_hook(lambda g: g))\n        {LOOP}",
        BLOCK, "layer(h)",
    ),
    "a module's hook": (
        f"if not kept: kept.append(model.register_forward_hook(lambda *a: None))\n        {LOOP}",
        BLOCK, "layer(h)",
    ),
    "a graph that is kept": (LOOP.replace("backward()", "backward(retain_graph=True)"),
                             BLOCK, "layer(h)"),
    "two calls, one backward": (
        LOOP.replace("model(x, y)[1]", "(model(x, y)[1] + model(x, y)[1])"), BLOCK, "layer(h)",
    ),
    "a penalty on the weights": (
        LOOP.replace("/ COUNT", "+ sum(p.square().sum() for p in model.parameters())"),
        BLOCK, "layer(h)",
    ),
    "running statistics": (LOOP, "nn.BatchNorm1d(128)", "layer(h)"),
    "activations that are kept": (
        LOOP, BLOCK, "(kept.append(layer(h)), kept[-1])[1]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NEVER)
def test_doubtful_micro_batches_are_run(case: str, probe: Probe) -> None:
    loop, model, layer = NEVER[case]
    folded = probe(loop, model, layer, 6, folds=True)
    assert folded.folded == 0
    assert is_equal(folded, probe(loop, model, layer, 6, folds=False))


MISTAKEN = {
    "the last graph is kept": LOOP.replace("backward()", "backward(retain_graph=micro == 5)"),
    "the last call has no backward": LOOP.replace("loss.backward", "micro < 5 and loss.backward"),
    "the last gradients are dropped first": LOOP.replace(
        "loss.backward()", "micro == 5 and optimizer.zero_grad()\n        loss.backward()"
    ),
    "the last loss has a penalty": LOOP.replace(
        "/ COUNT", "+ (model.head.weight.square().sum() if micro == 5 else 0)"
    ),
    "the last logits are kept until after the backward": (
        LOOP.replace("loss = model(x, y)[1]", "out, loss = model(x, y)\n        "
                     "out = out if micro == 5 else None\n        loss = loss")
    ),
    "the last result is used twice": OUTSIDE.replace(
        "cross_entropy", "(out.sum() if micro == 5 else 0) + cross_entropy"
    ).replace("out = model(x)", "out = model(x); hooks = micro == 5 and "
              "out.register_hook(kept.append)"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKEN)
def test_a_backward_unlike_those_before_ends_the_probe(case: str, probe: Probe) -> None:
    answer = probe(MISTAKEN[case], BLOCK, "layer(h)", 6, folds=True, steps=2)
    assert answer.ending == MISFOLDED


def test_a_misfolded_probe_is_run_again_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.replace("MODEL", BLOCK).replace("LAYER", "layer(h)")
    script.write_text(
        text.replace("LOOP", MISTAKEN["the last graph is kept"]).replace("COUNT", "6")
    )
    monkeypatch.chdir(tmp_path)
    request = ProbeRequest(
        script=str(script), arguments=(), is_module=False, gpu="H100-SXM", steps=1
    )
    with Probes() as probes:
        probes.start(8, request)
        deadline_s = time.monotonic() + TIMEOUT_S
        while (finished := probes.next_result(1.0)) is None:
            assert time.monotonic() < deadline_s
        probes.start(9, request)
        while (later := probes.next_result(1.0)) is None:
            assert time.monotonic() < deadline_s
    assert finished[0] == 8
    assert (finished[1].ending, finished[1].folded) == ("steps", 0)
    assert later[1].folded == 0
