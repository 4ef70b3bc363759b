"""What saving a checkpoint costs the training that goes on meanwhile.

One training on the CPU, in one process, in short rounds in turn: without a checkpoint, with one
saved in the background at the round's beginning, with the same one written before going on, and
with `torch.save` of the same state to one file, as nanoGPT does it, which flushes nothing to the
disk. A round is over when its checkpoint is. What a checkpoint costs is the median over rounds of
what a round takes longer than the one beside it without; a step's share of it follows from how
many steps lie between two checkpoints. Target: 1.02 of a step with the background, a checkpoint
every 40 steps (every 12 seconds on two cores at 2.5 GHz; the default is every 10 minutes).

    python -m benchmarks.checkpoint_saving [--repeat 20] [--layers 6] [--steps 12]
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.measuring import against, interleaved, megabytes, milliseconds, parser, show, write
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.saver import Saver
from torchtally.train.config import TrainConfig, config_of
from torchtally.train.tasks import Rehearsal, TrainBatch
from torchtally.train.trainer import Trainer

TARGET_RATIO = 1.02
STEPS_BETWEEN = 40
"""From one checkpoint to the next, where a step's share is told."""
WARMING_STEPS = 3


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--layers", type=int, default=6, metavar="N", help="default 6")
    options.add_argument(
        "--steps", type=int, default=12, metavar="N", help="of a round, default 12"
    )
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = config_for(folder, args.layers)
        trainer = Trainer(config, Rehearsal(config, torch.device("cpu")), torch.device("cpu"))
        with steps_of(trainer) as step:
            for _ in range(WARMING_STEPS):
                step()
            rounds = interleaved(ways(trainer, step, folder, args.steps), args.repeat)
        state_bytes = sum(tensor.nbytes for tensor in trainer.contents.tensors().values())
    report(rounds, args.steps, state_bytes)
    write(args.json, {"rounds_s": rounds, "steps": args.steps, "state_bytes": state_bytes})


def config_for(folder: str, layers: int) -> TrainConfig:
    """A decoder of bytes, 1.8 M parameters a layer."""
    width = 384
    return config_of(
        {
            "steps": 1_000_000,
            "batch": 4,
            "sequence": 128,
            "device": "cpu",
            "precision": "fp32",
            "model": {
                "layers": layers, "width": width, "heads": 6, "ffn": 1024,
                "vocabulary": 257, "context": 256,
            },
            "data": {"text": ["<stdlib>"]},
            "log": {"folder": folder},
        },
        "benchmark",
    )  # fmt: skip


@contextmanager
def steps_of(trainer: Trainer) -> Iterator[Callable[[], None]]:
    """A function that takes the next step."""
    with trainer.task.batches(range(trainer.config.steps), trainer.device) as batches:
        following: Iterator[TrainBatch] = iter(batches)

        def step() -> None:
            trainer.step(next(following))

        yield step


def ways(
    trainer: Trainer, step: Callable[[], None], folder: str, steps: int
) -> dict[str, Callable[[], float]]:
    """Each a round, in seconds."""
    checkpoints = Checkpoints(folder)
    config = trainer.config.checkpoint
    background = Saver(trainer.contents, checkpoints, config)
    foreground = Saver(trainer.contents, checkpoints, replace(config, in_background=False))
    saved = iter(range(1, 1_000_000))

    def save_by(saver: Saver) -> Callable[[], None]:
        return lambda: saver.save(next(saved))

    def torchs() -> None:
        state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
        torch.save({**state, "stepper": trainer.stepper.state_dict()}, Path(folder) / "ckpt.pt")

    def round_with(save: Callable[[], None], end: Callable[[], None]) -> Callable[[], float]:
        def measured() -> float:
            began_s = time.perf_counter()
            save()
            for _ in range(steps):
                step()
            end()
            return time.perf_counter() - began_s

        return measured

    def nothing() -> None:
        pass

    return {
        "no checkpoint": round_with(nothing, nothing),
        "in the background": round_with(save_by(background), background.wait),
        "in the foreground": round_with(save_by(foreground), nothing),
        "torch.save": round_with(torchs, nothing),
    }


def report(rounds: dict[str, list[float]], steps: int, state_bytes: int) -> None:
    without = rounds["no checkpoint"]
    step_s = median(without) / steps
    rows = []
    for name, seconds in rounds.items():
        extra_s = median(a - b for a, b in zip(seconds, without, strict=True))
        ratio = 1 + extra_s / (STEPS_BETWEEN * step_s)
        verdict = against(ratio, TARGET_RATIO) if name == "in the background" else ""
        rows.append([name, milliseconds(extra_s), f"{ratio:.3f}", verdict])
    title = (
        f"A checkpoint of {megabytes(state_bytes)}, every {STEPS_BETWEEN} steps of "
        f"{milliseconds(step_s)}"
    )
    show(title, ["saved", "a checkpoint", "a step", f"target {TARGET_RATIO}"], rows)


if __name__ == "__main__":
    main()
