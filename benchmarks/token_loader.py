"""Batches of tokens for a training loop: ours beside nanoGPT's `get_batch`, in one process.

Tokens/s of a consumer that does nothing else, in turn, on the same file; the ratio of each pair of
turns, and their median. Target: 10 times. Then a consumer that computes for the time of a step:
the share of its time that it waits for data, and its step by one with its data at hand, in turn.
Target: 1 %.

    python -m benchmarks.token_loader [--repeat 15] [--tokens 50M] [--json FILE]

The peer's lines are taken from a clone of nanoGPT, --nanogpt DIR, if there is one; else they are
these: a memory map for each batch, a row at a time widened to int64, rows stacked.
"""

import ast
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import interleaved, parser, show, write
from torchtally.train.data.batches import batches
from torchtally.train.data.order import Order, OrderName
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData
from torchtally.units import format_count, parse_count

SEQUENCE = 1024
BATCHES = (12, 64)
TARGET_RATIO = 10.0
TARGET_WAIT = 0.01
VOCABULARY = 50257
STEP_S = 0.02

NextBatch = Callable[[], tuple[Tensor, Tensor]]


def published_peer(path: str, batch: int) -> NextBatch:
    """What nanoGPT's loader does, from its description above."""

    def get_batch() -> tuple[Tensor, Tensor]:
        tokens = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(tokens) - SEQUENCE, (batch,))

        def rows(shift: int) -> Tensor:
            stretches = (tokens[at + shift : at + shift + SEQUENCE] for at in starts)
            return torch.stack(
                [torch.from_numpy(stretch.astype(np.int64)) for stretch in stretches]
            )

        return rows(0).to("cpu"), rows(1).to("cpu")

    return get_batch


def cloned_peer(folder: Path, path: str, batch: int) -> NextBatch:
    """The function `get_batch` of a clone's train.py, and nothing else of it."""
    tree = ast.parse((folder / "train.py").read_text())
    functions = [
        statement
        for statement in tree.body
        if isinstance(statement, ast.FunctionDef) and statement.name == "get_batch"
    ]
    names: dict[str, Any] = {
        "os": os, "np": np, "torch": torch, "data_dir": os.path.dirname(path),
        "block_size": SEQUENCE, "batch_size": batch, "device_type": "cpu", "device": "cpu",
    }  # fmt: skip
    exec(compile(ast.Module(functions, []), str(folder / "train.py"), "exec"), names)
    return lambda: names["get_batch"]("train")


def tokens_per_s(next_batch: NextBatch, batch: int, seconds: float) -> float:
    """Of whole batches, for about this long."""
    next_batch()
    started_s = now_s = time.perf_counter()
    count = 0
    while now_s - started_s < seconds:
        inputs, targets = next_batch()
        assert inputs.shape == targets.shape == (batch, SEQUENCE)
        count += 1
        now_s = time.perf_counter()
    return count * batch * SEQUENCE / (now_s - started_s)


def ours_per_s(path: str, batch: int, name: OrderName, seconds: float, read: Read) -> float:
    """The whole road: the order of each step, the ring's thread, and its batches."""
    stride = 1 if name is OrderName.RANDOM else SEQUENCE
    with TokenData([token_file(path, dtype="uint16")], sequence=SEQUENCE, stride=stride,
                   read=read) as data:  # fmt: skip
        order = Order(name, data.windows, batch=batch, seed=seed_of(Source.ORDER, 1))
        with batches(data, order) as ring:

            def next_batch() -> tuple[Tensor, Tensor]:
                batch = next(ring)
                return batch.tokens[:, :-1], batch.tokens[:, 1:]

            return tokens_per_s(next_batch, batch, seconds)


class Work:
    """A fixed amount of arithmetic that holds a core, as a training step on the CPU does."""

    def __init__(self, seconds: float) -> None:
        self._factor = torch.full((192, 192), 1 / 192)
        self._products = 1
        while min(self.timed() for _ in range(5)) < seconds:
            self._products = math.ceil(1.2 * self._products)

    def timed(self) -> float:
        started_s = time.perf_counter()
        self()
        return time.perf_counter() - started_s

    def __call__(self) -> None:
        for _ in range(self._products):
            self._factor = self._factor @ self._factor


def stepping(path: str, batch: int, steps: int, step: Callable[[], None]) -> dict[str, float]:
    """Steps with a batch each from the ring, and as many with one batch that is at hand.

    Step by step in turn, so that a busy minute hits both: the seconds of each kind, the median
    step of each, and the seconds waited.
    """
    fed: list[float] = []
    at_hand: list[float] = []
    with TokenData([token_file(path, dtype="uint16")], sequence=SEQUENCE) as data:
        order = Order(OrderName.SHUFFLED, data.windows, batch=batch, seed=1)
        with batches(data, order) as ring:
            kept = next(ring)
            waited_s = 0.0
            for _ in range(steps):
                started_s = time.perf_counter()
                waited_s += next(ring).wait_s
                step()
                middle_s = time.perf_counter()
                assert kept.tokens.shape == (batch, SEQUENCE + 1)
                step()
                fed.append(middle_s - started_s)
                at_hand.append(time.perf_counter() - middle_s)
            return {"fed_s": sum(fed), "waited_s": waited_s,
                    "ratio": median(a / b for a, b in zip(fed, at_hand, strict=True))}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=15)
    options.add_argument("--tokens", type=parse_count, default=50_000_000, metavar="N")
    options.add_argument("--seconds", type=float, default=0.3, help="of each turn (default 0.3)")
    options.add_argument("--steps", type=int, default=50, help="of the consumer that computes")
    options.add_argument("--nanogpt", metavar="DIR", help="a clone to take get_batch from")
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "train.bin"))
        np.random.default_rng(0).integers(0, VOCABULARY, args.tokens).astype("<u2").tofile(path)
        speeds = {str(batch): compared(args, path, batch) for batch in BATCHES}
        work = Work(STEP_S)
        waited = {
            f"{batch}, {kind}": stepping(path, batch, args.steps, step)
            for batch in BATCHES
            for kind, step in (("sleeps", lambda: time.sleep(STEP_S)), ("computes", work))
        }
    ratios = {key: ratios_of(rates) for key, rates in speeds.items()}
    show_speeds(speeds, ratios, args.repeat)
    show(
        f"Steps of {1e3 * STEP_S:.0f} ms; targets: {TARGET_WAIT:.0%} waited, and within as much",
        ("batch, consumer", "waited", "share", "step, to one with data at hand"),
        [
            (
                key,
                f"{1e3 * stepping['waited_s']:.2f} ms",
                f"{stepping['waited_s'] / stepping['fed_s']:.3%}",
                f"{stepping['ratio']:.4f}",
            )
            for key, stepping in waited.items()
        ],
    )
    write(args.json, {"sequence": SEQUENCE, "tokens_per_s": speeds, "ratios": ratios,
                      "target_ratio": TARGET_RATIO, "waits": waited})  # fmt: skip
    return 0


def compared(args: Any, path: str, batch: int) -> dict[str, list[float]]:
    """Tokens/s of each turn of each loader."""
    peer = (
        cloned_peer(Path(args.nanogpt), path, batch)
        if args.nanogpt
        else published_peer(path, batch)
    )
    seconds = args.seconds
    return interleaved(
        {
            "get_batch": lambda: tokens_per_s(peer, batch, seconds),
            **{
                name.value: lambda name=name: ours_per_s(path, batch, name, seconds, Read.MAP)
                for name in (OrderName.SHUFFLED, OrderName.RANDOM)
            },
            "shuffled, by reads": lambda: ours_per_s(
                path, batch, OrderName.SHUFFLED, seconds, Read.COPY
            ),
        },
        args.repeat,
    )


def ratios_of(speeds: dict[str, list[float]]) -> dict[str, float]:
    """The median over pairs of turns: ours by the peer's."""
    return {
        name: median(ours / peer for ours, peer in zip(rates, speeds["get_batch"], strict=True))
        for name, rates in speeds.items()
        if name != "get_batch"
    }


def show_speeds(
    speeds: dict[str, dict[str, list[float]]], ratios: dict[str, dict[str, float]], repeat: int
) -> None:
    show(
        f"Tokens/s, median of {repeat}; target {TARGET_RATIO:.0f} times get_batch",
        ("", *(f"{batch} x {SEQUENCE}" for batch in speeds), *("ratio" for _ in speeds)),
        [
            (
                name,
                *(format_count(round(median(speed[name]))) for speed in speeds.values()),
                *(f"{ratio[name]:.1f}" if name in ratio else "" for ratio in ratios.values()),
            )
            for name in next(iter(speeds.values()))
        ],
    )


if __name__ == "__main__":
    raise SystemExit(main())
