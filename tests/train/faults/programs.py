"""Kills three programs at random moments until each has ended often enough, and judges how.

    [NANOGPT=DIR] python -m tests.train.faults.programs [--kills 500] [PROGRAM...]

    nanogpt   train.py of a checkout (github.com/karpathy/nanoGPT), with the lines of LINES
    trainer   the Trainer of transformers, with torchtally.DurableCallback
    tally     tally train --resume

Each saves after every step. A program that was killed is started again in the same folder until its
training ends; then a new training begins. What must hold of each:

- it continues from the newest checkpoint that was there when it was killed: none is lost;
- its last checkpoint, with weights, optimizer and random states, is the one of a training that was
  never killed, byte for byte.

A process of its own, since it forks: imports are paid once, and it has no threads of PyTorch.
"""

import argparse
import importlib
import json
import os
import pickle
import random
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS = 16
LINES = (
    ("import torch\n", "import torch\nimport torchtally\n"),
    ("X, Y = get_batch('train') # fetch", "t0 = None # fetch"),
    (
        "while True:\n",
        "with torchtally.durable(\n"
        "    out_dir, model=raw_model, optimizer=optimizer, scaler=scaler, every=1\n"
        ") as run:\n"
        "  X, Y = run.get('batch') or get_batch('train')\n"
        "  for iter_num in run.steps(max_iters + 1):\n",
    ),
    ("        X, Y = get_batch('train')\n", "        X, Y = run['batch'] = get_batch('train')\n"),
    ("    if iter_num > max_iters:\n        break\n", ""),
)
"""What changes in nanoGPT's train.py, besides the indentation of its loop."""
LOADED = (
    "torch._dynamo", "torchtally.cli.train",
    "torchtally.report.training", "torchtally.report.training_plan", "torchtally.timing.targets",
    "torchtally.checkpoints.durable",
    "torchtally.train.failing", "torchtally.train.job",
)  # fmt: skip
"""What the programs import."""
NANOGPT = {
    "dataset": "made", "device": "cpu", "compile": False, "dtype": "float32", "n_layer": 2,
    "n_head": 2, "n_embd": 32, "block_size": 32, "batch_size": 4, "dropout": 0.1,
    "gradient_accumulation_steps": 2, "max_iters": STEPS - 1, "lr_decay_iters": STEPS,
    "warmup_iters": 5, "eval_interval": 5, "eval_iters": 2, "log_interval": 1,
}  # fmt: skip
CONFIG = f"""
steps = {STEPS}
batch = 4
micro_batch = 2
device = "cpu"

[model]
layers = 2
width = 32
heads = 4
ffn = 64
vocabulary = 257
context = 32
dropout = 0.1

[data]
train = ["DATA/train.bin"]
validation = ["DATA/val.bin"]
dtype = "uint16"

[evaluation]
every = 5
batches = 2

[checkpoint]
every = 1

[log]
folder = "RUN"
every = 1
"""


class Programs:
    """The three programs, with their code and data in a folder of their own."""

    def __init__(self, here: Path) -> None:
        self._here = here
        data = here / "data" / "made"
        data.mkdir(parents=True)
        draw = np.random.default_rng(0)
        for name in ("train", "val"):
            draw.integers(0, 65, 20_000).astype(np.uint16).tofile(data / f"{name}.bin")
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))
        self._config = CONFIG.replace("DATA", str(data))

    def nanogpt(self, folder: Path) -> None:
        os.chdir(self._here)
        sys.argv[1:] = [f"--{key}={value}" for key, value in {**NANOGPT, "out_dir": folder}.items()]
        sys.path.insert(0, str(self._here))
        runpy.run_path("train.py", run_name="__main__")

    def trainer(self, folder: Path) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        import torchtally

        torch.manual_seed(0)
        model: Any = GPT2LMHeadModel(
            GPT2Config(vocab_size=65, n_positions=32, n_embd=32, n_layer=2, n_head=2)
        )
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(65, (30, 32))]
        callback: Any = torchtally.DurableCallback(folder, every=1)
        arguments = TrainingArguments(
            output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=2,
            gradient_accumulation_steps=2, learning_rate=1e-2, warmup_steps=5, logging_steps=1,
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        Trainer(model, arguments, callbacks=[callback], train_dataset=rows).train(
            resume_from_checkpoint=callback.checkpoint()
        )

    def tally(self, folder: Path) -> None:
        from torchtally.cli import main

        path = folder / "config.toml"
        path.write_text(self._config.replace("RUN", str(folder)))
        raise SystemExit(main(["train", "--resume", str(path)]))

    def ready(self, name: str) -> Callable[[Path], None]:
        """The program, with what it imports loaded."""
        for module in LOADED:
            importlib.import_module(module)
        if name == "nanogpt":
            write_nanogpt(self._here)
        elif name == "trainer":
            import transformers

            import torchtally

            _ = transformers.Trainer, transformers.GPT2LMHeadModel, torchtally.DurableCallback
        program: Callable[[Path], None] = getattr(self, name)
        return program


def write_nanogpt(here: Path) -> None:
    """nanoGPT's files, with the lines that make its loop durable."""
    if "NANOGPT" not in os.environ:
        raise SystemExit("nanogpt: set NANOGPT to a checkout of github.com/karpathy/nanoGPT.")
    checkout = Path(os.environ["NANOGPT"])
    for name in ("model.py", "configurator.py"):
        shutil.copy(checkout / name, here)
    text = (checkout / "train.py").read_text()
    for old, new in LINES:
        if text.count(old) != 1:
            raise SystemExit(f"{checkout}/train.py: expected {old!r} once. Take another commit.")
        text = text.replace(old, new)
    head, loop = text.split("run.steps(max_iters + 1):\n")
    body, end = loop.split("\nif ddp:\n")
    body = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
    (here / "train.py").write_text(f"{head}run.steps(max_iters + 1):\n{body}\nif ddp:\n{end}")


@dataclass
class Tally:
    """What happened to one program."""

    program: str
    kills: int = 0
    before_the_first_checkpoint: int = 0
    while_saving: int = 0
    """A checkpoint was being written."""
    trainings: int = 0
    """That ended, and equal the one that was never killed."""
    whole_s: float = 0.0
    """Of a training without kills."""


def start(program: Callable[[Path], None], folder: Path) -> int:
    """The process of a program; its output is appended to a file."""
    folder.mkdir(exist_ok=True)
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        random.seed(0)  # nanoGPT leaves them to chance, and never draws
        np.random.seed(0)
        try:
            program(folder)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return max((int(path.name[5:]) for path in folder.glob("checkpoints/step-*")), default=0)


def state(folder: Path) -> dict[str, bytes]:
    """The tensors of the last checkpoint, as they are in its files."""
    assert newest(folder) == STEPS, f"{folder}: ended before its last step"
    files = (folder / "checkpoints" / f"step-{STEPS:08}").glob("*.safetensors")
    return {path.name: path.read_bytes() for path in files}


def check_resumed(folder: Path, expected: list[int]) -> None:
    """All starts continued from the newest checkpoint of before."""
    output = (folder / "output.txt").read_text(errors="replace")  # cut where it was killed
    assert "damaged" not in output, f"{folder}: a checkpoint was damaged"
    resumed = [int(step) for step in re.findall(r"resuming from step (\d+)$", output, re.MULTILINE)]
    # A start that was killed before it could say so says nothing.
    left = iter(expected)
    assert all(step in left for step in resumed), f"{folder}: {resumed} instead of {expected}"


def killed_again_and_again(
    program: Callable[[Path], None], here: Path, kills: int, tally: Tally, seed: int
) -> None:
    draw = random.Random(seed)
    began_s = time.monotonic()
    assert os.waitpid(start(program, here / "whole"), 0)[1] == 0, f"{here}/whole/output.txt"
    tally.whole_s = time.monotonic() - began_s
    wanted = state(here / "whole")
    while tally.kills < kills:
        folder = here / f"training-{tally.trainings}"
        seen = [0]
        while True:
            process = start(program, folder)
            if tally.kills < kills:  # else the training is left alone
                time.sleep(draw.uniform(0, tally.whole_s))
                os.kill(process, signal.SIGKILL)  # of one that has ended does nothing
            status = os.waitpid(process, 0)[1]
            if status == 0:
                break
            assert status == signal.SIGKILL, f"{folder}/output.txt: failed by itself"
            tally.kills += 1
            tally.while_saving += any((folder / "checkpoints").glob(".new-*"))
            tally.before_the_first_checkpoint += newest(folder) == 0
            assert newest(folder) >= seen[-1], f"{folder}: a checkpoint is gone"
            seen.append(newest(folder))
        check_resumed(folder, seen)
        assert state(folder) == wanted, f"{folder}: ended in another state"
        tally.trainings += 1
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill three programs at random moments.")
    parser.add_argument("--kills", type=int, default=500, help="over all programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    args = parser.parse_args()
    names = args.programs or ["nanogpt", "trainer", "tally"]
    here = Path(tempfile.mkdtemp(prefix="tally-kills-"))
    programs = Programs(here)
    for at, name in enumerate(names):
        tally = Tally(name)
        kills = args.kills // len(names) + (at < args.kills % len(names))
        program = programs.ready(name)
        (here / name).mkdir()
        killed_again_and_again(program, here / name, kills, tally, args.seed + at)
        print(json.dumps(asdict(tally)), flush=True)
    shutil.rmtree(here)


if __name__ == "__main__":
    main()
