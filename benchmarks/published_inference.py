"""Published speeds of inference beside what `tally plan --inference` predicts for them.

The rows are facts of public tables, in `benchmarks/inference/`: what a table prints, with its line.
Each row belongs to half A or B: what an engine sustains (`plan/inference/engines.py`) is learnt on
half A, whole chips or models at a time, and tried on half B and on all other tables.

    python -m benchmarks.published_inference [--json FILE]
"""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.halves import COLUMNS, cells, markdown
from benchmarks.measuring import parser, show, write
from torchtally.chips.clusters import cluster
from torchtally.plan.architecture.known import known_model
from torchtally.plan.inference.engines import ENGINES, engine
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.forward import Generator
from torchtally.plan.inference.memory import most_sequences
from torchtally.plan.inference.placement import Placement
from torchtally.plan.inference.serving import Serving
from torchtally.plan.kv_cache import Cache, cache_format
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.plan.quantity import Quantity

FOLDER = Path(__file__).with_name("inference")


@dataclass(frozen=True, slots=True)
class Table:
    """A published table, and who generated."""

    name: str
    engine: str
    source: str
    date: str

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.csv"


TABLES = (
    Table(
        "llama_cpp", "llama.cpp",
        "XiongjieDai/GPU-Benchmarks-on-LLM-Inference @aa72e0e README.md, llama-bench", "2024-05",
    ),
    Table("gpt_fast", "compiled", "pytorch-labs/gpt-fast @32971d3 README.md", "2024-09"),
    Table(
        "tensorrt_llm", "serving",
        "NVIDIA/TensorRT-LLM @00f3768 docs/source/performance/perf-overview.md", "2025-09",
    ),
    Table(
        "vllm", "serving",
        "yobitelcomm.github.io/bench/recipes/concurrency-sweep, "
        "johnmusgrave.com/p/vllm-throughput-latency-sweep-on, mushfiqrahman.dev/?p=1668",
        "2026-05, the others undated",
    ),
    Table(
        "deepseek", "serving",
        "deepseek-ai/open-infra-index @56d8685 202502OpenSourceWeek/day_6, "
        "lmsys.org/blog/2025-05-05-large-scale-ep", "2025-02 and 2025-05",
    ),
    Table(
        "mlperf", "serving",
        "techcommunity.microsoft.com on ND GB200 v6: 865,000 (4.1, unverified by MLCommons) and "
        "52,000 (5.1); ainews247.org/story/36773 on NVIDIA's 8 B200 in 5.1", "2025-03 to 2025-09",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speed:
    """One row: tokens per second of all chips together."""

    table: Table
    line: str
    serving: Serving
    metric: str
    """"decode", "prefill", or "steady" where prompts are read in between."""
    tokens_per_s: float
    half: str

    @property
    def group(self) -> str:
        kind = "" if self.table.name in ("vllm", "mlperf") else f", {self.metric}"
        return f"{self.table.name}{kind}"

    def predicted(self, *, is_best: bool = False) -> Quantity:
        serving = self.serving.best if is_best else self.serving
        if self.metric == "decode":
            return serving.decode_tokens_per_s
        return serving.prompt_tokens_per_s if self.metric == "prefill" else serving.tokens_per_s


REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (1000, 2000): 1500, (2048, 128): 3000,
    (2048, 2048): 1500, (5000, 500): 1500, (1000, 1000): 3000, (500, 2000): 3000,
    (20000, 2000): 1000,
}  # fmt: skip
"""Of TensorRT-LLM's throughput runs, by prompt and output: no more sequences than that are ever at
work. The same page."""


def speeds(tables: Iterable[Table] = TABLES) -> Iterator[Speed]:
    for table in tables:
        with table.file.open(newline="") as file:
            for row in csv.DictReader(file):
                yield _speed(table, row)


def _speed(table: Table, row: Mapping[str, str]) -> Speed:
    generator = generator_of(table, row)
    prompt, output = int(row["prompt"]), int(row["output"])
    sequences = int(row["sequences"] or 0)
    if not sequences:
        fitting = most_sequences(generator, prompt, prompt + output)
        requests = REQUESTS.get((prompt, output), fitting * generator.placement.replicas)
        sequences = max(1, min(fitting, requests // generator.placement.replicas))
    serving = Serving(generator, sequences, max(prompt, 1), max(output, 1))
    return Speed(
        table, row["line"], serving, row["metric"], float(row["tokens_per_s"]), row["half"]
    )


def generator_of(table: Table, row: Mapping[str, str]) -> Generator:
    who = engine(table.engine)
    chips = cluster(f"{row['gpus']}x{row['chip']}")
    words = row.get("layout") or (f"tp {row['gpus']}" if row["gpus"] != "1" else "")
    layout = parse_layout(words, chips.count, None, Layout()) if words else Layout()
    kept = cache_format(row.get("cache") or "bf16")
    return Generator(
        known_model(row["model"]), chips, Placement(layout.tensor, layout.data, layout.expert),
        weight_format(row["weights"]), Cache(who.cache, who.block, kept), who,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """One speed, published and predicted."""

    speed: Speed
    typical_per_s: float
    best_per_s: float

    @property
    def half(self) -> str:
        return self.speed.half

    @property
    def ratio(self) -> float:
        """Predicted over published seconds of a token."""
        return self.speed.tokens_per_s / self.typical_per_s

    @property
    def best_ratio(self) -> float:
        return self.speed.tokens_per_s / self.best_per_s


def outcomes(tables: Iterable[Table] = TABLES) -> list[Outcome]:
    return [
        Outcome(speed, float(speed.predicted().value), float(speed.predicted(is_best=True).value))
        for speed in speeds(tables)
    ]


def by_group(outcomes_known: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes_known:
        groups.setdefault(outcome.speed.group, []).append(outcome)
    return groups


def table() -> str:
    """For docs/inference.md: every group of rows, each half apart."""
    outcomes_known = outcomes()
    lines = [cells(name, group) for name, group in sorted(by_group(outcomes_known).items())]
    lines.append(cells("**all**", outcomes_known))
    return markdown(lines)


def engines_table() -> str:
    """For docs/inference.md: what each engine sustains, and what that is learnt from."""
    lines = [
        "| engine | products | passes | experts | unpacking | a layer | a sequence | slow |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for who in ENGINES.values():
        shares = (who.pace.other_products, who.pace.passes, who.experts, who.unpacking)
        times = (who.layer_s, who.sequence_s)
        cells = [
            *(f"{share:.0%}" for share in shares),
            *(f"{each * 1e6:.0f} us" if each else "" for each in times),
            f"{who.slower:g}",
        ]
        lines.append(f"| {who.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def sources() -> str:
    """For docs/inference.md: where each table is from."""
    return "".join(
        f"- `{each.name}` ({each.engine}): {each.source}; {each.date}\n" for each in TABLES
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    outcomes_known = outcomes()
    rows = [cells(name, group) for name, group in sorted(by_group(outcomes_known).items())]
    show("Predicted over published time per token", COLUMNS, [*rows, cells("all", outcomes_known)])
    write(
        args.json,
        {
            "rows": [
                {
                    "table": outcome.speed.table.name,
                    "line": outcome.speed.line,
                    "metric": outcome.speed.metric,
                    "half": outcome.speed.half,
                    "published_tokens_per_s": outcome.speed.tokens_per_s,
                    "predicted_tokens_per_s": outcome.typical_per_s,
                    "best_tokens_per_s": outcome.best_per_s,
                }
                for outcome in outcomes_known
            ]
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
