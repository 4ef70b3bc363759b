"""`torchtally.summary` against torch's FlopCounterMode on the same model on meta tensors.

The peer counts FLOPs of a step (forward, backward, AdamW), and of the two passes alone. A summary
copies the model, makes the optimizer's state, takes the step and accounts it: parameters, FLOPs,
bytes saved, time and peak memory. One process, repetitions in turn. Target: no more than the peer's
step.

    python -m benchmarks.summary [--repeat 5] [--layers N] [--json FILE]
"""

import gc
import sys
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import torchtally
from benchmarks.against_flop_counter import MODELS
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
from benchmarks.models import Model, training_step

TARGET_RATIO = 1.0
WAYS = {"step": "FlopCounterMode, step", "passes": "FlopCounterMode, forward and backward"}


class Meta:
    """A model on meta tensors with its batch, built once for everybody."""

    def __init__(self, model: Model) -> None:
        with torch.device("meta"):
            self.model = model.build().train()
            self.ids = torch.zeros(model.batch, model.sequence, dtype=torch.long)
        self.flops = {"flop_counter": 0, "summary": 0}

    def inputs(self) -> dict[str, Any]:
        """The empty cache tells transformers that the batch is not packed sequences."""
        from transformers import DynamicCache

        return {"input_ids": self.ids, "labels": self.ids, "past_key_values": DynamicCache()}

    def counted(self, *, steps: bool) -> Spent:
        gc.collect()
        optimizer = torch.optim.AdamW(self.model.parameters()) if steps else None
        counter = FlopCounterMode(display=False)
        with Stopwatch() as watch, counter:
            if optimizer is None:
                self.model(**self.inputs()).loss.backward()
            else:
                training_step(self.model, self.ids, optimizer)
        self.model.zero_grad()
        self.flops["flop_counter"] = counter.get_total_flops()
        return watch.spent

    def summarised(self) -> Spent:
        gc.collect()
        with Stopwatch() as watch:
            found = torchtally.summary(
                self.model, gpu="H100-SXM", precision="as-is", named_inputs=self.inputs()
            )
            found.table()
        self.flops["summary"] = found.ledger.total.flops_matmul
        return watch.spent


def measure(model: Model, repetitions: int) -> dict[str, Any]:
    """Medians of all ways, the ratios to the peer, and every single run."""
    meta = Meta(model)
    runs = interleaved(
        {
            "step": lambda: meta.counted(steps=True),
            "passes": lambda: meta.counted(steps=False),
            "summary": meta.summarised,
        },
        repetitions,
    )
    figures = {way: middle(samples) for way, samples in runs.items()}
    ratios = {
        f"{way}_{clock}": getattr(figures["summary"], clock) / getattr(figures[way], clock)
        for way in WAYS
        for clock in ("wall_s", "cpu_s")
    }
    return {
        "model": model.name,
        "seconds": {
            way: {"wall_s": spent.wall_s, "cpu_s": spent.cpu_s} for way, spent in figures.items()
        },
        "wall_s": {way: [spent.wall_s for spent in samples] for way, samples in runs.items()},
        "ratio": ratios,
        "flops": meta.flops,
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
        measure(model.with_layers(1), 1)  # first-use costs of torch and torchtally
        figures = measure(model, args.repeat)
        records.append(figures)
        show(
            f"{model.name}: seconds, wall (CPU), median of {args.repeat}",
            ("", "seconds"),
            [
                (WAYS.get(way, way), f"{seconds(spent['wall_s'])} ({seconds(spent['cpu_s'])})")
                for way, spent in figures["seconds"].items()
            ],
        )
        ratio = figures["ratio"]
        print(
            f"  summary / step {ratio['step_wall_s']:.2f} ({ratio['step_cpu_s']:.2f}),"
            f" / forward and backward {ratio['passes_wall_s']:.2f} ({ratio['passes_cpu_s']:.2f});"
            f" target {TARGET_RATIO}: {against(ratio['step_wall_s'], TARGET_RATIO)}"
        )
    write(args.json, {"target_ratio": TARGET_RATIO, "models": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
