"""Tracing a training step against the same step under torch's FlopCounterMode on meta tensors.

The peer counts FLOPs by operator and module; a trace records beside them bytes, storages, lines
and phases. One process, repetitions in turn, the garbage collector as it is. The first step of a
run is given, too: torchtally remembers what it has seen, so later steps are faster.
Target: a later step costs at most 1.2 times the peer's.

    python -m benchmarks.against_flop_counter [--repeat 5] [--layers N] [--json FILE]
"""

import gc
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import torchtally
from benchmarks.measuring import (
    Spent,
    Stopwatch,
    against,
    interleaved,
    middle,
    parser,
    seconds,
    show,
    write,
)
from benchmarks.models import GPT2_124M, LLAMA_8B_CHECKPOINTED, LLAMA_70B, Model, training_step

TARGET_RATIO = 1.2
MODELS = {"llama-70b": LLAMA_70B, "gpt2-124m": GPT2_124M, "llama-8b": LLAMA_8B_CHECKPOINTED}


@dataclass(frozen=True, slots=True)
class Steps:
    """A run's first step and the one after it."""

    first: Spent
    later: Spent
    flops: int = 0


def on_meta(model: Model, *, counts: bool) -> Steps:
    """Two steps on meta tensors, by themselves or under torch's counter."""
    gc.collect()
    with torch.device("meta"):
        built = model.build().train()
        ids = torch.zeros(model.batch, model.sequence, dtype=torch.long)
    optimizer = torch.optim.AdamW(built.parameters(), lr=1e-4)
    spent, flops = [], 0
    for _ in range(2):
        counter = FlopCounterMode(display=False)
        with Stopwatch() as watch:
            if counts:
                with counter:
                    training_step(built, ids, optimizer)
                flops = counter.get_total_flops()
            else:
                training_step(built, ids, optimizer)
        spent.append(watch.spent)
    return Steps(*spent, flops=flops)


def traced(model: Model) -> Steps:
    """Two steps on the virtual GPU, recorded."""
    gc.collect()
    spent: list[Spent] = []

    def train() -> None:
        built = model.build().to("cuda").train()
        optimizer = torch.optim.AdamW(built.parameters(), lr=1e-4)
        ids = torch.randint(0, 1000, (model.batch, model.sequence), device="cuda")
        for _ in range(2):
            with Stopwatch() as watch:
                training_step(built, ids, optimizer)
            spent.append(watch.spent)

    ledger = torchtally.account(torchtally.run(train, gpu="H100-SXM", memory_is_limited=False))
    return Steps(*spent, flops=ledger.total.flops_matmul)


def measure(model: Model, repetitions: int) -> dict[str, Any]:
    """Medians of all three ways, the ratios to the peer, and every single run."""
    runs = interleaved(
        {
            "meta": lambda: on_meta(model, counts=False),
            "flop_counter": lambda: on_meta(model, counts=True),
            "torchtally": lambda: traced(model),
        },
        repetitions,
    )
    figures = {
        way: {
            "first": middle(count.first for count in samples),
            "later": middle(count.later for count in samples),
        }
        for way, samples in runs.items()
    }
    ratios = {
        f"{step}_{clock}": getattr(figures["torchtally"][step], clock)
        / getattr(figures["flop_counter"][step], clock)
        for step in ("first", "later")
        for clock in ("wall_s", "cpu_s")
    }
    return {
        "model": model.name,
        "steps": {
            way: {
                step: {"wall_s": spent.wall_s, "cpu_s": spent.cpu_s}
                for step, spent in by_step.items()
            }
            for way, by_step in figures.items()
        },
        "later_wall_s": {
            way: [count.later.wall_s for count in samples] for way, samples in runs.items()
        },
        "ratio": ratios,
        "flops": {way: samples[0].flops for way, samples in runs.items() if way != "meta"},
    }


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=5)
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = options.parse_args(argv)
    records = []
    for key in args.models:
        model = MODELS[key].with_layers(args.layers)
        on_meta(model.with_layers(1), counts=True)  # torch's own first-use costs, for everybody
        figures = measure(model, args.repeat)
        records.append(figures)
        show(
            f"{model.name}: seconds a step, wall (CPU), median of {args.repeat}",
            ("", "first step", "later step"),
            [
                (
                    way,
                    *(
                        f"{seconds(record['wall_s'])} ({seconds(record['cpu_s'])})"
                        for record in (by_step["first"], by_step["later"])
                    ),
                )
                for way, by_step in figures["steps"].items()
            ],
        )
        ratio = figures["ratio"]
        print(
            f"  torchtally / flop_counter: first {ratio['first_wall_s']:.2f}"
            f" ({ratio['first_cpu_s']:.2f}), later {ratio['later_wall_s']:.2f}"
            f" ({ratio['later_cpu_s']:.2f}); target {TARGET_RATIO}:"
            f" {against(ratio['later_wall_s'], TARGET_RATIO)}"
        )
    write(args.json, {"target_ratio": TARGET_RATIO, "models": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
