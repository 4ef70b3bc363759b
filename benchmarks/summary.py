"""`torchtally.summary` against torch's FlopCounterMode on the same model on meta tensors.

The peer counts FLOPs of a step (forward, backward, AdamW), and of the two passes alone. A summary
copies the model, makes the optimizer's state, takes the step and accounts it: parameters, FLOPs,
bytes saved, time and peak memory. One process, repetitions in turn. Target: no more than the peer's
step.

    python -m benchmarks.summary [--repeat 5] [--layers N] [--models gpt-2 moe] [--json FILE]
"""

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from benchmarks.models import Model
from benchmarks.peer_models import MODELS as PEER_MODELS
from benchmarks.peer_models import PeerModel

TARGET_RATIO = 1.0
WAYS = {"step": "FlopCounterMode, step", "passes": "FlopCounterMode, forward and backward"}


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on meta tensors with its batch, built once for everybody."""

    name: str
    model: Any
    tensors: Sequence[Any] = ()
    named: Callable[[], dict[str, Any]] = dict
    """Anew for each call: the model writes into an empty cache."""

    def loss(self) -> Any:
        output = self.model(*self.tensors, **self.named())
        return output.sum() if isinstance(output, torch.Tensor) else output.loss


def of_text(model: Model) -> Subject:
    """A model of language with its labels, at the sizes that it is known by.

    The empty cache tells transformers that the batch is not packed sequences.
    """
    with torch.device("meta"):
        built = model.build().train()
        ids = torch.zeros(model.batch, model.sequence, dtype=torch.long)

    def named() -> dict[str, Any]:
        from transformers import DynamicCache

        return {"input_ids": ids, "labels": ids, "past_key_values": DynamicCache()}

    return Subject(model.name, built, named=named)


def of_peers(model: PeerModel) -> Subject:
    """A model of the peers' table."""
    with torch.device("meta"):
        return Subject(f"{model.name} (of the peers' table)", model.build(), model.tensors())


SUBJECTS: dict[str, Callable[[int | None], Subject]] = {
    **{key: partial(lambda model, layers: of_text(model.with_layers(layers)), model)
       for key, model in MODELS.items()},
    **{model.name.lower(): partial(lambda model, _: of_peers(model), model)
       for model in PEER_MODELS},
}  # fmt: skip
"""By name, made with so many layers where a model's number can be chosen."""


@dataclass(slots=True)
class Meta:
    """A subject with what both ways count of it."""

    subject: Subject
    flops: dict[str, int] = field(default_factory=dict)

    def counted(self, *, steps: bool) -> Spent:
        gc.collect()
        model = self.subject.model
        optimizer = torch.optim.AdamW(model.parameters()) if steps else None
        counter = FlopCounterMode(display=False)
        with Stopwatch() as watch, counter:
            self.subject.loss().backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        model.zero_grad()
        self.flops["flop_counter"] = counter.get_total_flops()
        return watch.spent

    def summarised(self) -> Spent:
        gc.collect()
        subject = self.subject
        with Stopwatch() as watch:
            total = torchtally.summary(
                subject.model, *subject.tensors, gpu="H100-SXM", precision="as-is",
                named_inputs=subject.named(),
            )  # fmt: skip
            total.table()
        self.flops["summary"] = total.ledger.total.flops_matmul
        return watch.spent


def measure(subject: Subject, repetitions: int) -> dict[str, Any]:
    """Medians of all ways, the ratios to the peer, and every single run."""
    meta = Meta(subject)
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
    fastest = {way: min(spent.cpu_s for spent in samples) for way, samples in runs.items()}
    return {
        "model": subject.name,
        "seconds": {
            way: {"wall_s": spent.wall_s, "cpu_s": spent.cpu_s} for way, spent in figures.items()
        },
        "wall_s": {way: [spent.wall_s for spent in samples] for way, samples in runs.items()},
        "ratio": ratios,
        "fastest_cpu_s": fastest,
        "fastest_ratio": fastest["summary"] / fastest["step"],
        "flops": meta.flops,
    }


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=5)
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    options.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    args = options.parse_args(argv)
    records = []
    for key in args.models:
        measure(SUBJECTS[key](1), 1)  # first-use costs of torch and torchtally
        subject = SUBJECTS[key](args.layers)
        figures = measure(subject, args.repeat)
        records.append(figures)
        show(
            f"{subject.name}: seconds, wall (CPU), median of {args.repeat}",
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
            f" target {TARGET_RATIO}: {against(ratio['step_wall_s'], TARGET_RATIO)}\n"
            "  CPU time of the fastest runs, which other processes disturb least: "
            f"{figures['fastest_ratio']:.2f} of the step"
        )
    write(args.json, {"target_ratio": TARGET_RATIO, "models": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
