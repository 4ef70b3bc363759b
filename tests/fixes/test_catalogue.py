"""Every fix changes what it should as a person would, and computes what it says."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
import torch

from tests.documents import REPOSITORY
from tests.fixes.training import SOURCE
from torchtally.fixes.catalogue.chunked_cross_entropy import FUNCTION
from torchtally.fixes.fix import FileEvidence, Fix, NotApplicableError, ValueChange, fixes
from torchtally.fixes.patch import rewritten

EVIDENCE = FileEvidence(
    frozenset(("logits = model(tokens)", "loss = F.cross_entropy(logits, tokens)")),
    frozenset(("Block",)),
)
FIXES = {fix.name: fix for fix in fixes()}
LINES = {
    "TF32": {'torch.set_float32_matmul_precision("high")'},
    "autocast": {
        'with torch.autocast("cuda", dtype=torch.bfloat16):',
        "    logits = model(tokens)",
        "    loss = F.cross_entropy(logits, tokens)",
    },
    "chunked cross entropy": {
        "import torch.utils.checkpoint",
        "loss = chunked_cross_entropy(logits, tokens)",
        *FUNCTION.splitlines(),
    }
    - set(SOURCE.splitlines()),
    "checkpointed blocks": {
        "from torch.utils.checkpoint import checkpoint",
        "x = checkpoint(block, x, use_reentrant=False)",
    },
    "detached losses": {"total += loss.detach()", "losses.append(loss.detach())"},
    "expandable segments": {
        "import os",
        'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")',
    },
    "freed gradients": {"optimizer.zero_grad()"},
    "fused optimizer": {"fused=True,"},
    "optimizer in a loop": {"foreach=False,"},
}
"""The lines that each adds to the training."""
FORMS = ("Trainer checkpoints", "bfloat16 by argument", "fused attention", "pinned copies")
"""Fixes for what the training does not have: test_forms.py."""


def changed(fix: Fix, source: str = SOURCE) -> str:
    try:
        return rewritten(fix, "train.py", source, EVIDENCE)
    except NotApplicableError:
        return source


def trained(source: str) -> tuple[list[torch.Tensor], float]:
    """Weights and the sum of losses after four steps on the CPU."""
    names: dict[str, Any] = {"__name__": "training"}
    printed: list[tuple[float, int]] = []
    names["print"] = lambda *words: printed.append(words)
    exec(compile(source.replace('"cuda"', '"cpu"'), "train.py", "exec"), names)
    model = names["train"](32, 16)
    ((total, losses),) = printed
    assert losses == 4
    return [weight.detach() for weight in model.parameters()], total


def test_every_fix_is_listed_here() -> None:
    assert {*LINES, *FORMS} == FIXES.keys()


@pytest.mark.parametrize("name", LINES)
def test_a_fix_adds_the_lines_that_a_person_would(name: str) -> None:
    before, after = SOURCE.splitlines(), changed(FIXES[name]).splitlines()
    added = {line.strip() for line in after if line not in before}
    assert added == {line.strip() for line in LINES[name]}


@pytest.mark.parametrize("name", LINES)
def test_a_fix_finds_nothing_to_do_in_its_own_result(name: str) -> None:
    once = changed(FIXES[name])
    assert changed(FIXES[name], once) == once


@pytest.mark.parametrize("name", LINES)
def test_a_fix_leaves_a_file_without_training_alone(name: str) -> None:
    source = "import torch\n\n\ndef f(x):\n    return x + 1\n"
    with suppress(NotApplicableError):
        assert rewritten(FIXES[name], "a.py", source, FileEvidence(frozenset())) == source


@pytest.mark.parametrize("name", [name for name in LINES if FIXES[name].values is ValueChange.SAME])
def test_a_fix_that_keeps_bits_keeps_them(name: str) -> None:
    weights, total = trained(SOURCE)
    others, other_total = trained(changed(FIXES[name]))
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))
    assert total == other_total


@pytest.mark.parametrize(
    "name", [name for name in LINES if FIXES[name].values is ValueChange.ROUNDED]
)
def test_a_fix_that_rounds_otherwise_is_within_rounding(name: str) -> None:
    weights, _ = trained(SOURCE)
    others, _ = trained(changed(FIXES[name]))
    for pair in zip(weights, others, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)


def test_a_fix_that_changes_values_says_so() -> None:
    """Of these, autocast is what a CPU runs as well."""
    changing = {name for name, fix in FIXES.items() if fix.values is ValueChange.CHANGED}
    assert changing == {"autocast", "TF32", "bfloat16 by argument"}
    weights, _ = trained(SOURCE)
    others, _ = trained(changed(FIXES["autocast"]))
    assert not all(torch.equal(*pair) for pair in zip(weights, others, strict=True))


MODEL = """\
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=2)).cuda()
"""


def test_a_model_of_transformers_checkpoints_by_its_own_method() -> None:
    enabled = f"{MODEL}model.gradient_checkpointing_enable()\n"
    assert changed(FIXES["checkpointed blocks"], MODEL) == enabled


NORMED = """\
class Model(nn.Module):
    def __init__(self):
        self.blocks = [nn.BatchNorm1d(4)]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
HOOKS = """\
class Model(nn.Module):
    def forward(self, x):
        for hook in self.hooks:
            hook()
        return x
"""


def test_a_function_that_saves_is_no_checkpoint_of_blocks() -> None:
    source = f"{SOURCE}\n\ndef save_checkpoint(model):\n    pass\n"
    assert "checkpoint(block, x" in changed(FIXES["checkpointed blocks"], source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fused optimizer", "o = torch.optim.AdamW(p, foreach=True)\n"),
        ("fused optimizer", "o = torch.optim.AdamW(p, **options)\n"),
        ("fused optimizer", "o = torch.optim.RMSprop(p)\n"),
        ("detached losses", "loss = a\nloss += b\nloss.backward()\n"),
        ("detached losses", "a = 0\na += loss\n(a + b).backward()\nloss.backward()\n"),
        ("detached losses", "def f():\n    loss.backward()\ndef g():\n    a = 0\n    a += loss\n"),
        ("detached losses", "def f():\n    loss.backward()\n    total += loss\n    return total\n"),
        ("checkpointed blocks", NORMED),
        ("checkpointed blocks", HOOKS),
        ("checkpointed blocks", "for block in blocks:\n    x = block(x)\n"),
        ("TF32", "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n"),
    ],
)
def test_what_the_user_chose_or_needs_stays(name: str, source: str) -> None:
    assert changed(FIXES[name], source) == source


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("import torch, os\n", "torch.set_float32"),
        ("import torch as th\n", "th.set_float32"),
        ("import torch.nn as nn\n", "torch.set_float32"),
        ("from torch import nn\n", "torch.set_float32"),
    ],
)
def test_tf32_takes_the_import_that_is_there(head: str, call: str) -> None:
    after = changed(FIXES["TF32"], head)
    assert f"\n{call}" in after
    assert after.count("import torch\n") == (call.startswith("torch") and "torch," not in head)


@pytest.mark.parametrize(
    ("name", "peaks", "reason"),
    [("autocast", (), "float16 needs a GradScaler"), ("TF32", ("bfloat16",), "no rate for TF32")],
)
def test_what_the_chip_cannot_is_not_offered(
    name: str, peaks: tuple[str, ...], reason: str
) -> None:
    evidence = FileEvidence(EVIDENCE.forward, EVIDENCE.recomputable, frozenset(peaks))
    with pytest.raises(NotApplicableError, match=reason):
        rewritten(FIXES[name], "train.py", SOURCE, evidence)


def test_a_file_that_starts_by_a_future_import_still_does() -> None:
    source = '"""Words."""\n\nfrom __future__ import annotations\n\nimport torch\n'
    for name in ("TF32", "expandable segments"):
        after = changed(FIXES[name], source)
        assert cst.parse_module(after).get_docstring() == "Words."
        compile(after, "train.py", "exec")


def test_the_page_lists_every_fix() -> None:
    page = (REPOSITORY / "docs" / "fix.md").read_text(encoding="utf-8")
    for fix in FIXES.values():
        assert f"| {fix.name} | {fix.values} | {fix.text} |" in page


def test_help_needs_neither_torch_nor_libcst(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom torchtally.cli import main\n"
        "try: main(['fix', '--help'])\nexcept SystemExit: pass\n"
        "print({'torch', 'libcst'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.endswith("set()\n")
