"""Where the learnt constants of `plan/parallel/pace.py` come from: half A of published tables.

Shares of products and passes: on a grid of 5 %, the least mean of |log(predicted / published)| over
llm-foundry and vTrain on many nodes. The host: of vTrain's single node, rows whose kernels take
less than 45 % of the published time, as seconds for each layer and each micro-batch of a stage. How
sharply the longer of host and device decides: all rows of a single node. The share of links and the
time of a message are from nccl-tests that are not in this repository (VIA-Research/vTrain @f8dda84,
trace/a100/AR_GPU*_LUT, odd numbers of MiB).

    python -m benchmarks.learn_pace
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from statistics import mean
from unittest.mock import patch

from benchmarks.measuring import parser, show, write
from benchmarks.published_trainings import SOURCES, Training, predicted, trainings
from torchtally.plan.parallel import delays
from torchtally.plan.parallel.pace import TYPICAL, Pace

GRID = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
HOST_BOUND = 0.45
TURNS_TRIED = (2, 3, 4, 5, 6, 8, 12)


def half_a(is_one_node: bool) -> Iterator[Training]:
    """Rows to learn from: vTrain's of one node, or all others that are learnt from."""
    for source in SOURCES[:2]:
        for row in trainings(source):
            is_single = source.name == "vtrain" and row.cluster.count <= 8
            if row.half == "A" and is_single is is_one_node:
                yield row


def log_error(rows: Sequence[Training], pace: Pace) -> float:
    """Mean of |log ratio|."""
    return mean(abs(log(predicted(row, pace).seconds.value / (row.step_s or 1.0))) for row in rows)


def shares() -> list[tuple[float, float, float, float]]:
    """Of passes, products of Ampere, of Hopper, and the error: the best products for each."""
    groups: dict[str, list[Training]] = {}
    for row in half_a(is_one_node=False):
        groups.setdefault(row.group, []).append(row)
    per_row = []
    for passes in GRID:
        best = {}
        for chip in ("A100", "H100"):
            rows = [group for name, group in groups.items() if chip in name]
            best[chip] = min(
                (
                    sum(
                        log_error(
                            group,
                            replace(TYPICAL, products={}, other_products=share, passes=passes),
                        )
                        for group in rows
                    ),
                    share,
                )
                for share in GRID
            )
        error = best["A100"][0] + best["H100"][0]
        per_row.append((passes, best["A100"][1], best["H100"][1], error))
    return sorted(per_row, key=lambda row: row[-1])


def turns() -> list[tuple[float, int]]:
    """(mean |log ratio|, `delays.TURNS`), the best first."""
    rows = list(half_a(is_one_node=True))
    per_turn = []
    for tried in TURNS_TRIED:
        with patch.object(delays, "TURNS", tried):
            per_turn.append((log_error(rows, TYPICAL), tried))
    return sorted(per_turn)


def host() -> tuple[float, float, int]:
    """Seconds for each layer and for each micro-batch of a stage, and rows they are from.

    A line through the seconds of a round by the layers of a stage. Tensor parallelism over all
    eight GPUs is left out: there a layer takes 4.9 ms.
    """
    layers: list[float] = []
    seconds: list[float] = []
    for row in half_a(is_one_node=True):
        layout, idle = row.layout, replace(TYPICAL, launch_s={})
        if layout.tensor > 4 or predicted(row, idle).seconds.value > HOST_BOUND * (row.step_s or 0):
            continue
        layers.append(row.model.layers / layout.pipeline)
        seconds.append((row.step_s or 0.0) / (layout.micro_batches + layout.pipeline - 1))
    layer_s, round_s = line_through(layers, seconds)
    return layer_s, round_s, len(layers)


def line_through(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of the least squares of relative errors."""
    a = [(x / y, 1 / y) for x, y in zip(xs, ys, strict=True)]
    xx, xo, oo = (sum(p[i] * p[j] for p in a) for i, j in ((0, 0), (0, 1), (1, 1)))
    x1, o1 = (sum(p[i] for p in a) for i in (0, 1))
    determinant = xx * oo - xo * xo
    return (x1 * oo - o1 * xo) / determinant, (o1 * xx - x1 * xo) / determinant


def main(argv: Sequence[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    learnt, (layer_s, round_s, count) = shares(), host()
    show(
        "Shares, learnt on half A",
        ("passes", "products A100", "products H100", "mean |log ratio|, summed"),
        [(f"{p:.0%}", f"{a:.0%}", f"{h:.0%}", f"{error:.4f}") for p, a, h, error in learnt],
    )
    print(
        f"host, {count} rows: {layer_s * 1e3:.2f} ms a layer, {round_s * 1e3:.2f} ms a micro-batch"
    )
    tried = turns()
    print("turns: " + ", ".join(f"{power} {error:.4f}" for error, power in tried))
    write(args.json, {"shares": learnt, "layer_s": layer_s, "round_s": round_s, "turns": tried})
    return 0


if __name__ == "__main__":
    sys.exit(main())
