"""Hugging Face's Trainer rotates checkpoints: it deletes the oldest, which may not be its own."""

import subprocess
from pathlib import Path

from tests.cli.run_tally import tally_run
from tests.isolation.snapshot import snapshot
from tests.warm import PYTHON, warm

SCRIPT = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        ids = torch.arange(16)
        return {"input_ids": ids, "labels": ids}

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
arguments = TrainingArguments(
    "out", max_steps=2, save_steps=1, save_total_limit=1, per_device_train_batch_size=2,
    report_to=[], disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=Tokens()).train()
import os
print(sorted(os.listdir("out")))
"""


def test_an_existing_checkpoint_outlives_the_rotation(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    checkpoint = tmp_path / "out" / "checkpoint-0"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights of last week")
    before = snapshot(tmp_path)
    run = tally_run("--steps", "9", "train.py", cwd=tmp_path)
    assert run.code == 0, run.stderr
    assert "['checkpoint-2']" in run.stdout.splitlines()
    assert snapshot(tmp_path, without=("run.tally",)) == before


def test_a_library_that_was_loaded_before_saves_shapes(tmp_path: Path) -> None:
    """In a process that has imported save_file by name before the run began, as a notebook has."""
    (tmp_path / "whole.py").write_text(
        "import transformers.modeling_utils\n"
        "import torchtally\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def save():\n"
        "    sizes = {'n_positions': 16, 'n_embd': 16, 'n_layer': 1, 'n_head': 1}\n"
        "    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, **sizes)).cuda()\n"
        "    model.save_pretrained('out')\n"
        "    print(type(GPT2LMHeadModel.from_pretrained('out')).__name__)\n"
        "torchtally.run(save, gpu='H100-SXM')\n"
    )
    done = subprocess.run(
        warm(PYTHON, "whole.py"), cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "GPT2LMHeadModel"
    assert not (tmp_path / "out").exists()
