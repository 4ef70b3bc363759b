"""Fixes for forms of source that the small training of this folder does not have."""

from typing import Any

import pytest
import torch

from tests.fixes.test_catalogue import EVIDENCE, FIXES, FORMS
from tests.fixes.training import SOURCE
from torchtally.fixes.fix import FileEvidence, NotApplicableError
from torchtally.fixes.patch import rewritten

ATTENTION = """\
import math
import torch
import torch.nn.functional as F


def masked(q, k, v, mask):
    weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    weights = weights.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(weights, dim=-1)
    y = weights @ v
    return y


def plain(q, k, v, mask):
    weights = torch.matmul(q, k.mT) / k.size(-1) ** 0.5
    weights = weights.softmax(-1)
    y = torch.matmul(weights, v)
    return y


def shown(q, k, v, mask):
    weights = q @ k.mT
    weights = weights.softmax(-1)
    y = weights @ v
    return y + weights.sum()


def returned(q, k, v, mask):
    if mask is None:
        weights = q @ k.mT
        weights = weights.softmax(-1)
        y = weights @ v
    return y, weights


def dropped(q, k, v, mask):
    weights = q @ k.mT
    weights = F.dropout(weights.softmax(-1), 0.0)
    y = weights @ v
    return y
"""
ARGUMENTS = """\
from transformers import TrainingArguments
from trl import SFTConfig

first = TrainingArguments(output_dir="x")
second = SFTConfig(
    output_dir="x",
)
own = TrainingArguments(gradient_checkpointing=False, fp16=True)
"""
LIGHTNING = "import lightning as L\n\ntrainer = L.Trainer(max_steps=2)\n"
ACCELERATE = "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
LOADER = """\
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=4)
for step, (x, y) in enumerate(loader):
    x, y = x.to(device), y.cuda()
    z = x.to(torch.float32)
    w = weights.to(device)
"""


def changed(name: str, source: str) -> str:
    return rewritten(FIXES[name], "train.py", source, EVIDENCE)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_changed_is_not_changed_again(name: str) -> None:
    source = {"fused attention": ATTENTION, "pinned copies": LOADER}.get(name, ARGUMENTS)
    once = changed(name, source)
    assert once != source
    assert changed(name, once) == once


def test_attention_is_one_kernel_and_computes_the_same_but_for_rounding() -> None:
    after = changed("fused attention", ATTENTION)
    assert after.count("scaled_dot_product_attention") == 2
    before_names: dict[str, Any] = {}
    after_names: dict[str, Any] = {}
    exec(ATTENTION, before_names)
    exec(after, after_names)
    q, k, v = (torch.randn(2, 3, 8, 16) for _ in range(3))
    mask = torch.tril(torch.ones(8, 8))
    for name in ("masked", "plain", "shown", "dropped"):
        expected, got = (names[name](q, k, v, mask) for names in (before_names, after_names))
        torch.testing.assert_close(got, expected)


def test_arguments_of_a_trainer_that_say_nothing_get_a_checkpoint() -> None:
    after = changed("Trainer checkpoints", ARGUMENTS)
    added = 'gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}'
    assert f'TrainingArguments(output_dir="x", {added})' in after
    assert '    output_dir="x",\n    gradient_checkpointing=True,\n' in after
    assert "own = TrainingArguments(gradient_checkpointing=False, fp16=True)\n" in after


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (ARGUMENTS, 'first = TrainingArguments(output_dir="x", bf16=True)'),
        (LIGHTNING, 'L.Trainer(max_steps=2, precision="bf16-mixed")'),
        (ACCELERATE, 'Accelerator(mixed_precision="bf16")'),
    ],
)
def test_each_framework_computes_in_bfloat16_by_its_argument(source: str, call: str) -> None:
    assert call in changed("bfloat16 by argument", source)
    without = FileEvidence(EVIDENCE.forward, peaks=frozenset())
    with pytest.raises(NotApplicableError, match="no rate for bfloat16"):
        rewritten(FIXES["bfloat16 by argument"], "train.py", source, without)


def test_batches_are_copied_without_waiting_and_nothing_else_is() -> None:
    after = changed("pinned copies", LOADER)
    assert "DataLoader(data, batch_size=4, pin_memory=True)" in after
    assert "x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)" in after
    assert "z = x.to(torch.float32)\n    w = weights.to(device)\n" in after


def test_copies_back_to_the_host_are_waited_for() -> None:
    back = ('x.to("cpu")', "x.to(device='cpu')", 'x.to(torch.device("cpu"))')
    source = LOADER + "".join(f"    print({each}.numpy())\n" for each in back)
    after = changed("pinned copies", source)
    assert all(f"print({each}.numpy())" in after for each in back)


def test_a_loss_of_pieces_ignores_what_it_is_told_to() -> None:
    source = "import torch.nn.functional as F\n\nloss = F.cross_entropy(x, y, ignore_index=3)\n"
    x = torch.randn(13, 5, requires_grad=True)
    y = torch.randint(5, (13,))
    results = []
    for text in (source, changed("chunked cross entropy", source)):
        names: dict[str, Any] = {"x": x, "y": y}
        exec(text, names)
        results.append((names["loss"].detach(), *torch.autograd.grad(names["loss"], x)))
    torch.testing.assert_close(*results)


def test_a_loss_of_pieces_needs_no_name_of_the_script() -> None:
    source = "import torch.nn.functional as F\n\ncheckpoint = {}\nloss = F.cross_entropy(x, y)\n"
    names: dict[str, Any] = {"x": torch.randn(13, 5), "y": torch.randint(5, (13,))}
    exec(changed("chunked cross entropy", source), names)
    assert names["checkpoint"] == {}


@pytest.mark.parametrize("own", ["if True:\n    checkpoint = {}\n", "def checkpoint(): ...\n"])
def test_blocks_are_left_where_a_checkpoint_is_something_else(own: str) -> None:
    with pytest.raises(NotApplicableError, match="of its own `checkpoint`"):
        changed("checkpointed blocks", SOURCE + own)
    local = SOURCE + "\n\ndef save():\n    checkpoint = {}\n"
    assert "checkpoint(block, x, use_reentrant=False)" in changed("checkpointed blocks", local)


def test_a_trainer_with_checkpoints_computes_the_same_but_for_rounding() -> None:
    """As its argument does it: transformers enables it for the model, by the same keywords.

    With GPT-2's dropout gradients differ by 1e-8; without, they are equal.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    def gradients(is_checkpointed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=8)
        model = GPT2LMHeadModel(config).train()
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        tokens = torch.randint(32, (2, 8))
        loss = model(tokens, labels=tokens).loss
        return list(torch.autograd.grad(loss, list(model.parameters())))

    for pair in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(*pair)
