"""Hugging Face's Trainer rotates checkpoints: it deletes the oldest, which may not be its own."""

from pathlib import Path

from tests.cli.run_tally import tally_run
from tests.isolation.snapshot import snapshot

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
