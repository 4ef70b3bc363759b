"""What `torchtally.monitor` costs a loop: each step, and the prediction that a child process makes.

The same steps with and without, in turn: of a GPT-2 so small that the host is all of a step. Then
`step()` by itself, with a log every ten steps. Target: at most 1.01 times the bare loop's CPU time.

    python -m benchmarks.monitor [--repeat 500] [--json FILE]
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

import torchtally
from benchmarks.measuring import Spent, Stopwatch, against, interleaved, middle, parser, show, write
from benchmarks.models import GPT2_124M

TARGET_RATIO = 1.01
CALLS = 100_000
GPU = "H100-SXM"
LOOP = "the loop alone"
MODEL = GPT2_124M.resized(vocab_size=512, n_embd=64, n_layer=2, n_head=2)


def training() -> Callable[[], None]:
    """A step of a small GPT-2 on the host."""
    torch.manual_seed(0)
    model = MODEL.build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 500, (4, 64))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps_of(step: Callable[[], None], monitor: Any) -> Callable[[], Spent]:
    """One step of the loop, with or without a monitor."""

    def timed() -> Spent:
        with Stopwatch() as watch:
            step()
            if monitor is not None:
                monitor.step()
        return watch.spent

    return timed


def predicted() -> Any:
    """A prediction of such a loop, for a monitor that has one to compare with."""
    return torchtally.summary(MODEL.build, "4x64:int64", gpu=GPU)


def call_s(summary: Any) -> float:
    """Seconds of one `step()`, its share of a log included."""
    monitor = torchtally.monitor(summary, log=lambda values, step: None)
    with Stopwatch() as watch:
        for _ in range(CALLS):
            monitor.step()
    return watch.spent.wall_s / CALLS


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=500)
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    step, summary = training(), predicted()
    ways = {
        LOOP: steps_of(step, None),
        "measured alone": steps_of(step, torchtally.monitor()),
        "beside a prediction, logged": steps_of(
            step, torchtally.monitor(summary, log=lambda values, step: None)
        ),
    }
    interleaved(ways, 20)  # first-use costs
    figures = {
        way: middle(samples) for way, samples in interleaved(ways, args.repeat).items()
    }  # fmt: skip
    ratios = {way: spent.cpu_s / figures[LOOP].cpu_s for way, spent in figures.items()}
    each_s = call_s(summary)
    show(
        f"{MODEL.name}: median of {args.repeat} steps each, in turn",
        ("", "wall", "CPU", "of the loop"),
        [
            (
                way, f"{spent.wall_s * 1e3:.3f} ms", f"{spent.cpu_s * 1e3:.3f} ms",
                f"{ratios[way]:.4f}",
            )
            for way, spent in figures.items()
        ],
    )  # fmt: skip
    print(f"  step() by itself: {each_s * 1e6:.2f} us")
    print(f"  target {TARGET_RATIO}: {against(max(ratios.values()), TARGET_RATIO)}")
    seconds = {way: {"wall_s": each.wall_s, "cpu_s": each.cpu_s} for way, each in figures.items()}
    document = {"target_ratio": TARGET_RATIO, "ratio": ratios, "call_s": each_s, "step": seconds}
    write(args.json, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
