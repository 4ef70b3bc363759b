"""Where the learnt constants of `plan/inference/engines.py` come from: half A of published tables.

For each engine and each constant in turn, the value of its grid with the least mean of
|log(predicted / published)|, until nothing changes; at the end, how many times as long as predicted
nine of ten rows of half A took.

    python -m benchmarks.learn_inference
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log
from statistics import mean

from benchmarks.measuring import parser, show, write
from benchmarks.published_inference import TABLES, Speed, speeds
from torchtally.plan.inference.engines import Engine, at_best, engine, sustained_engine

SHARES = (
    1.0,
    0.95,
    0.9,
    0.85,
    0.8,
    0.75,
    0.7,
    0.65,
    0.6,
    0.55,
    0.5,
    0.45,
    0.4,
    0.35,
    0.3,
    0.25,
    0.2,
)
Constants = dict[str, float]
GRIDS: dict[str, tuple[float, ...]] = {
    "products": SHARES,
    "blackwell": SHARES,
    "passes": SHARES[:9],
    "experts": SHARES,
    "unpacking": SHARES,
    "sequence_us": (0, 5, 10, 15, 20, 25, 30, 35, 40, 50, 60),
    "layer_us": (0, 10, 20, 30, 40, 50, 60, 80, 100),
    "intake_bytes_per_clock": (4, 5, 6, 7, 8, 10, 12),
}
LEARNT: dict[str, tuple[str, ...]] = {
    "tensorrt_llm": ("products", "blackwell", "passes", "experts", "sequence_us"),
    "gpt_fast": ("passes", "unpacking", "layer_us"),
    "llama_cpp": ("products", "passes", "unpacking", "layer_us", "intake_bytes_per_clock"),
}
"""Constants of an engine that a table says something of."""


def with_engine(speed: Speed, who: Engine) -> Speed:
    generator = replace(speed.serving.generator, engine=who)
    return replace(speed, serving=replace(speed.serving, generator=generator))


def log_ratios(rows: Sequence[Speed], who: Engine) -> Iterator[float]:
    """Of published over predicted tokens per second."""
    for row in rows:
        predicted = with_engine(row, who).predicted().value
        yield log(row.tokens_per_s / float(predicted))


def log_error(rows: Sequence[Speed], who: Engine) -> float:
    return mean(map(abs, log_ratios(rows, who)))


def learn(rows: Sequence[Speed], who: Engine, names: Sequence[str]) -> tuple[Constants, float]:
    """The constants, and the error that they leave."""
    constants: Constants = {}
    least = log_error(rows, at_best(who))
    while True:
        before = dict(constants)
        for name in names:
            for value in GRIDS[name]:
                tried = constants | {name: value}
                error = log_error(rows, sustained_engine(at_best(who), **tried))
                if error < least - 1e-4:
                    least, constants = error, tried
        if constants == before:
            return constants, least


def slower(rows: Sequence[Speed], who: Engine) -> float:
    """Nine of ten rows took no longer than so many times what is predicted."""
    times = sorted(-ratio for ratio in log_ratios(rows, who))
    return exp(times[int(0.9 * len(times))])


def main(argv: Sequence[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    lines = []
    for table in TABLES:
        if table.name in LEARNT:
            rows = [row for row in speeds([table]) if row.half == "A"]
            who = engine(table.engine)
            constants, error = learn(rows, who, LEARNT[table.name])
            late = slower(rows, sustained_engine(at_best(who), **constants))
            lines.append((who.name, constants, error, late))
    show(
        "Learnt on half A",
        ("engine", "constants", "error", "nine of ten within"),
        [
            (name, ", ".join(f"{key} {value:g}" for key, value in constants.items()),
             f"{error:.3f}", f"{late:.2f}")
            for name, constants, error, late in lines
        ],
    )  # fmt: skip
    write(args.json, {name: constants for name, constants, _, _ in lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
