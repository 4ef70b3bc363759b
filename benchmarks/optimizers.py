"""One optimizer step over the tensors of GPT-2 124M on the CPU: torch's three ways, and ours.

Every implementation has parameters, gradients and state of its own, alike; they step in turn, so a
busy moment of the machine hits all of them, and each repetition gives a ratio to torch's for-loop.
muon is measured when it is named: its products take a CPU minutes.
The figures are medians. "auto" is what `build` chooses; it should be the fastest within 10 %.

    OMP_NUM_THREADS=1 python -m benchmarks.optimizers [--repeat 9] [--layers N]
        [--vocabulary N] [--names adamw,...]
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.measuring import against, interleaved, parser, show, write
from torchtally.train.optimizers.build import build, implementations
from torchtally.train.optimizers.config import OptimizerConfig

TARGET_RATIO = 1.1
POSITIONS, WIDTH = 1024, 768
NAMES = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", "lion")


@dataclass(frozen=True, slots=True)
class Size:
    """What a smaller model has less of."""

    layers: int = 12
    vocabulary: int = 50304


def shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """GPT-2's tensors: 124.5M parameters in 148 tensors where there are 12 layers."""
    d = WIDTH
    yield from (("wte", (size.vocabulary, d)), ("wpe", (POSITIONS, d)))
    for layer in range(size.layers):
        for name, out, width in (("qkv", 3 * d, d), ("proj", d, d), ("up", 4 * d, d),
                                 ("down", d, 4 * d)):  # fmt: skip
            yield from ((f"{layer}.{name}", (out, width)), (f"{layer}.{name}.bias", (out,)))
        for norm in ("norm1", "norm2"):
            yield from ((f"{layer}.{norm}", (d,)), (f"{layer}.{norm}.bias", (d,)))
    yield from (("norm", (d,)), ("norm.bias", (d,)))


def parameters(size: Size) -> list[tuple[str, torch.nn.Parameter]]:
    """With gradients, the same ones for everybody."""
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for name, shape in shapes(size):
        parameter = torch.nn.Parameter(0.02 * torch.randn(shape, generator=generator))
        parameter.grad = 0.001 * torch.randn(shape, generator=generator)
        parameters.append((name, parameter))
    return parameters


def contestants(name: str, size: Size) -> dict[str, torch.optim.Optimizer]:
    """One optimizer in each of its implementations; the for-loop first."""
    kinds = implementations(OptimizerConfig(name=name), {"cpu"})
    contestants: dict[str, torch.optim.Optimizer] = {}
    if name == "muon":
        contestants["for-loop"] = torch_muon(size)
    for kind in sorted(kinds, key=lambda kind: kind != "for-loop"):
        config = OptimizerConfig(name=name, implementation=kind)
        contestants[kind] = build(parameters(size), config)
    return contestants


class Pair(torch.optim.Optimizer):
    """torch's Muon for hidden matrices and its AdamW, in a loop, for the rest."""

    def __init__(self, hidden: list[Any], others: list[Any]) -> None:
        super().__init__([*hidden, *others], {"lr": 1e-3})
        self.pair = (
            torch.optim.Muon(hidden, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.1, foreach=False),
        )

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for optimizer in self.pair:
            optimizer.step()


def torch_muon(size: Size) -> torch.optim.Optimizer:
    named = parameters(size)
    hidden = [
        parameter for name, parameter in named if parameter.ndim == 2 and name not in ("wte", "wpe")
    ]
    others = [
        parameter for name, parameter in named if parameter.ndim != 2 or name in ("wte", "wpe")
    ]
    return Pair(hidden, others)


def timed(optimizer: torch.optim.Optimizer) -> Callable[[], float]:
    def one_step() -> float:
        started_s = perf_counter()
        optimizer.step()
        return perf_counter() - started_s

    return one_step


def measure(name: str, size: Size, repeat: int) -> dict[str, Any]:
    """Seconds of every step, and medians of the ratios within each repetition."""
    optimizers = contestants(name, size)
    for optimizer in optimizers.values():
        optimizer.step()  # makes the state
    runs = interleaved({kind: timed(optimizer) for kind, optimizer in optimizers.items()}, repeat)
    base = next(iter(runs))
    ratios = {
        kind: median(s / base_s for s, base_s in zip(times, runs[base], strict=True))
        for kind, times in runs.items()
    }
    chosen = implementations(OptimizerConfig(name=name), {"cpu"})[0]
    fastest = min(ratios.values())
    return {
        "name": name,
        "step_s": runs,
        "ratio": ratios,
        "auto": chosen,
        "auto_to_fastest": ratios[chosen] / fastest,
    }


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=9)
    options.add_argument(
        "--layers", type=int, default=Size().layers, metavar="N", help="fewer layers"
    )
    options.add_argument("--vocabulary", type=int, default=Size().vocabulary, metavar="N")
    options.add_argument("--names", default=",".join(NAMES), help="optimizers, comma-separated")
    args = options.parse_args(argv)
    size = Size(args.layers, args.vocabulary)
    records = [measure(name, size, args.repeat) for name in args.names.split(",")]
    elements = sum(parameter.numel() for _, parameter in parameters(size))
    show(
        f"a step over {elements / 1e6:.1f}M float32 parameters on the CPU, "
        f"{torch.get_num_threads()} threads, median of {args.repeat}",
        ("optimizer", "implementation", "step", "to for-loop", "auto"),
        [
            (
                model["name"],
                kind,
                f"{median(model['step_s'][kind]) * 1e3:.1f} ms",
                f"{ratio:.2f}",
                f"x {model['auto_to_fastest']:.2f}" if kind == model["auto"] else "",
            )
            for model in records
            for kind, ratio in model["ratio"].items()
        ],
    )
    worst = max(model["auto_to_fastest"] for model in records)
    verdict = against(worst, TARGET_RATIO)
    print(f"  auto against the fastest, at most {worst:.2f}; target {TARGET_RATIO}: {verdict}")
    write(args.json, {"target_ratio": TARGET_RATIO, "optimizers": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
