"""Step times of a thousand published trainings beside what `tally plan` predicts for their layouts.

The rows are facts of public repositories, in `benchmarks/trainings/`: what a table prints, with its
line. Each is asked as a user types it: the model, the chips, the layout, and the software
(`--stack`), whose table says which kernels ran and what overlapped. Each row belongs to half A or B
by its number in the table: constants are learnt on half A of one source, and tried on its half B
and on all others.

    python -m benchmarks.published_trainings [--json FILE]
"""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import correlation, mean, median
from tempfile import mkdtemp
from typing import Any

from benchmarks.halves import COLUMNS, LEAST_ROWS, cells, error, markdown, ninth_decile
from benchmarks.measuring import parser, show, write
from torchtally.chips import Cluster
from torchtally.cli import parsed, plan
from torchtally.cli.plan_request import resolved
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.pace import TYPICAL, Pace
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.questions.own_layout import layout_of
from torchtally.plan.questions.workload import workload_of

FOLDER = Path(__file__).with_name("trainings")


@dataclass(frozen=True, slots=True)
class Source:
    """A repository's table, and what its rows have in common."""

    name: str
    citation: str
    stack: str
    """As `tally plan --stack` takes it."""
    model: Callable[[str, int], str]
    """As `tally plan` takes it, by the row's word and its sequence length."""
    recipes: Mapping[str, str]
    """Of ours, by the row's precision."""

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.csv"


@dataclass(frozen=True, slots=True)
class Training:
    """One row of a table."""

    source: Source
    line: str
    words: tuple[str, ...]
    """Arguments of `tally plan`, but for the layout."""
    workload: Workload
    """As `tally plan` reads them."""
    layout: Layout
    recomputed: float
    """Of the layers, the share that the layout's recomputation is of."""
    step_s: float | None
    """None: it ran out of memory."""
    memory_gib: float | None
    half: str
    release: str

    @property
    def model(self) -> Model:
        return self.workload.model

    @property
    def cluster(self) -> Cluster:
        return self.workload.cluster

    @property
    def group(self) -> str:
        """Rows that are summed up together: a source's on one generation of chips."""
        generation = self.cluster.chip.sm.generation
        chip = {"Ampere": "A100", "Hopper": "H100", "": self.cluster.chip.vendor}.get(
            generation, generation
        )
        kind = " mixtures" if self.model.is_mixture else ""
        nodes = ""
        if self.source.name == "vtrain":
            nodes = ", one node" if self.cluster.count <= 8 else ", many nodes"
        return f"{self.source.name}{kind}, {chip}{nodes}"


@cache
def _folder() -> Path:
    return Path(mkdtemp(prefix="tally-published-"))


def config(name: str, **keys: Any) -> str:
    """Path of a config.json with these keys, in a folder of this name."""
    path = _folder() / name / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(keys))
    return str(path)


def megatron_gpt(word: str, sequence: int) -> str:
    """GPT by width, layers, heads (1024x24x16); GPT-2's vocabulary, padded to a multiple of 128."""
    width, layers, heads = map(int, word.split("x"))
    return config(
        f"GPT-{word}-{sequence}", model_type="gpt2", n_embd=width, n_layer=layers, n_head=heads,
        vocab_size=50304, n_positions=sequence, activation_function="gelu",
    )  # fmt: skip


def bloom(word: str, sequence: int) -> str:
    """tr11-176B-ml.slurm: ALiBi, a vocabulary of 250,880, dropout of 0.1."""
    width, layers, heads = map(int, word.split("x"))
    return config(
        f"BLOOM-{word}", model_type="bloom", hidden_size=width, n_layer=layers, n_head=heads,
        vocab_size=250880, seq_length=sequence, hidden_dropout=0.1, attention_dropout=0.1,
    )  # fmt: skip


MPT = {
    "125m": "768x12x12", "350m": "1024x24x16", "760m": "1536x24x12", "1b": "2048x24x16",
    "3b": "2560x32x20", "7b": "4096x32x32", "13b": "5120x40x40", "30b": "7168x48x56",
    "70b": "8192x80x64",
}  # fmt: skip
"""scripts/train/yamls/pretrain/mpt-*.yaml: d_model, n_layers, n_heads."""


def mpt(word: str, sequence: int) -> str:
    """Without biases or dropout."""
    width, layers, heads = map(int, MPT[word].split("x"))
    return config(
        f"MPT-{word}-{sequence}", model_type="mpt", d_model=width, n_layers=layers, n_heads=heads,
        vocab_size=50368, max_seq_len=sequence, no_bias=True,
    )  # fmt: skip


def known(word: str, sequence: int) -> str:
    return word


SOURCES = (
    Source(
        "vtrain", "VIA-Research/vTrain @f8dda84 data/ground_truth_{single,multi}.csv",
        "megatron-deepspeed", megatron_gpt, {"fp16": "mixed-fp16"},
    ),
    Source(
        "llm_foundry", "mosaicml/llm-foundry @8c8dd48 scripts/train/benchmarking/README.md",
        "llm-foundry", mpt,
        {"bf16 PURE": "mixed", "bf16 DEFAULT": "megatron", "amp_bf16 DEFAULT": "megatron",
         "amp_bf16 PURE": "mixed", "amp_fp8 DEFAULT": "fp8", "fp8 DEFAULT": "fp8"},
    ),
    Source(
        "bigscience",
        "bigscience-workshop/bigscience @9e64ede train/tr11-176B-ml/chronicles-prequel.md",
        "megatron-deepspeed", bloom, {"fp16": "ds-fp16", "bf16": "ds-bf16"},
    ),
    Source(
        "megatron_bridge",
        "NVIDIA-NeMo/Megatron-Bridge @067f987 docs/performance-summary-archive.md",
        "megatron-bridge", known,
        {"BF16": "megatron", "FP8": "fp8-current", "FP8-CS": "fp8-current",
         "FP8-MX": "mxfp8", "MXFP8": "mxfp8"},
    ),
    Source(
        "fms_fsdp", "foundation-model-stack/fms-fsdp @5a296af README.md", "fms-fsdp", known,
        {"bf16": "mixed"},
    ),
    Source(
        "torchtitan", "pytorch/torchtitan @b5bcd76 benchmarks/, docs/performance.md",
        "torchtitan:2025.06", known, {"fp8": "fp8", "amp": "amp"},
    ),
    Source(
        "mlperf", "mlcommons/training_results_v5.1 @4da2d1c, logs and configurations of entries",
        "nemo", known, {"FP8": "fp8", "FP8-CS": "fp8-current", "NVFP4": "nvfp4"},
    ),
    Source(
        "prime_rl", "PrimeIntellect-ai/prime-rl @559b4477 benchmarks/baselines", "prime-rl", known,
        {"bf16": "mixed"},
    ),
)  # fmt: skip


def trainings(source: Source, *, has_stack: bool = True) -> Iterator[Training]:
    """Rows of the table as `tally plan` reads them; without a stack, as one types them who names
    none.
    """
    asked: dict[tuple[str, ...], Any] = {}
    with source.file.open(newline="") as file:
        for row in csv.DictReader(file):
            yield _training(source, row, asked, has_stack=has_stack)


def layout_words(row: Mapping[str, str]) -> str:
    """The row's layout, as `tally plan --layout` takes it."""
    recompute, _, _ = row["recompute"].partition(":")
    shard = "ddp" if row["shard"] == "none" else row["shard"]
    group = f":{row['shard_group']}" if row.get("shard_group") else ""
    chunks = row.get("chunks") or "1"
    words = [
        f"dp {row.get('data') or 1}", f"{shard}{group}",
        f"mb {row['micro_batch']}x{row['micro_batches']}",
        *(f"{word} {row[name]}" for word, name in (("tp", "tensor"), ("cp", "context"),
          ("ep", "expert")) if int(row.get(name) or 1) > 1),
    ]  # fmt: skip
    if int(row.get("pipeline") or 1) > 1:
        words.append(f"pp {row['pipeline']}" + (f"x{chunks}" if int(chunks) > 1 else ""))
    if min(int(row.get("tensor") or 1), int(row.get("expert") or 1)) > 1:
        words.append("etp 1")  # as in all of its recipes
    return ", ".join(words if recompute == "none" else [*words, recompute])


def plan_words(source: Source, row: Mapping[str, str], *, has_stack: bool) -> tuple[str, ...]:
    """Arguments of `tally plan`, but for the layout."""
    words = [
        source.model(row["model"], int(row["sequence"])),
        "--gpus", f"{row['gpus']}x{row['chip']}", "--sequence", row["sequence"],
        "--recipe", source.recipes[row["precision"]],
    ]  # fmt: skip
    if row.get("gbit_per_gpu") and int(row["gpus"]) > 8:
        words += ["--network", f"{row['gbit_per_gpu']}Gb/s"]
    if has_stack:
        release = f":{row['release']}" if row.get("release") else ""
        words += ["--stack", f"{source.stack}{release}", *(row.get("knobs") or "").split()]
    return (*words, *(row.get("options") or "").split())


def _training(
    source: Source, row: Mapping[str, str], asked: dict[tuple[str, ...], Any], *, has_stack: bool
) -> Training:
    words, layout = plan_words(source, row, has_stack=has_stack), layout_words(row)
    if words not in asked:
        ask = resolved(plan.asked_of(parsed(["plan", *words, "--layout", layout])))
        asked[words] = ask, workload_of(ask)[0]
    ask, workload = asked[words]
    _, _, recomputed = row["recompute"].partition(":")
    return Training(
        source, row.get("line", ""), words, workload,
        layout_of(replace(ask, layout=layout), workload), float(recomputed or 1),
        _float(row.get("step_s")), _float(row.get("memory_gib")), row["half"],
        row.get("release", ""),
    )  # fmt: skip


def _float(text: str | None) -> float | None:
    return float(text) if text else None


def predicted(
    row: Training, pace: Pace = TYPICAL, pricings: dict[object, Pricing] | None = None
) -> Step:
    """Trainings of one model on the same chips share their `pricings`."""
    shared = {} if pricings is None else pricings
    if row.words not in shared:
        shared[row.words] = Pricing(replace(row.workload, pace=pace))
    return shared[row.words].step(row.layout)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training, published and predicted: seconds of a step."""

    row: Training
    predicted_s: float
    best_s: float
    """With everything at its best."""
    slow_s: float
    ideal_s: float
    """The model's FLOPs at the data sheet's peak of all chips."""

    @property
    def is_in_range(self) -> bool:
        return self.best_s <= (self.row.step_s or 0.0) <= self.slow_s

    @property
    def half(self) -> str:
        return self.row.half

    @property
    def ratio(self) -> float:
        """Predicted over published seconds."""
        return self.predicted_s / (self.row.step_s or 1.0)

    @property
    def best_ratio(self) -> float:
        return self.best_s / (self.row.step_s or 1.0)


def outcome(row: Training, pricings: dict[object, Pricing]) -> Outcome:
    """A step adds up its layers: with some recomputed it lies between that of none and of all."""
    all_of_them = predicted(row, pricings=pricings)
    plain = replace(row, layout=replace(row.layout, recompute=Recompute.NONE))
    none_of_them = all_of_them if row.recomputed == 1 else predicted(plain, pricings=pricings)
    share = row.recomputed
    return Outcome(
        row,
        *(
            share * of_all.value + (1 - share) * of_none.value
            for of_all, of_none in zip(
                (all_of_them.seconds, all_of_them.best, all_of_them.slow),
                (none_of_them.seconds, none_of_them.best, none_of_them.slow),
                strict=True,
            )
        ),
        all_of_them.mfu.value * all_of_them.seconds.value,
    )


def outcomes(
    sources: Iterable[Source] = SOURCES, every: int = 1, *, has_stack: bool = True
) -> list[Outcome]:
    """Of every so many of vTrain's rows, and of all others."""
    pricings: dict[object, Pricing] = {}
    return [
        outcome(row, pricings)
        for source in sources
        for number, row in enumerate(trainings(source, has_stack=has_stack))
        if row.step_s and (source.name != "vtrain" or number % every == 0)
    ]


@cache
def every_outcome(*, has_stack: bool = True) -> tuple[Outcome, ...]:
    """Of all rows of all sources, as the documents' tables have them."""
    return tuple(outcomes(has_stack=has_stack))


def by_group(outcomes_known: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes_known:
        groups.setdefault(outcome.row.group, []).append(outcome)
    return groups


def by_source(outcomes_known: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """On all chips, mixtures apart."""
    sources: dict[str, list[Outcome]] = {}
    for outcome in outcomes_known:
        kind = " mixtures" if outcome.row.model.is_mixture else ""
        sources.setdefault(f"{outcome.row.source.name}{kind}", []).append(outcome)
    return sources


def sweeps(outcomes_known: Iterable[Outcome], least: int = 4) -> list[list[Outcome]]:
    """Several layouts of one training: the same model, chips, batch and sequence."""
    groups: dict[tuple[str | int, ...], list[Outcome]] = {}
    for outcome in outcomes_known:
        row = outcome.row
        key = (row.group, row.layout.global_batch, *row.words)
        groups.setdefault(key, []).append(outcome)
    return [group for group in groups.values() if len(group) >= least]


def regret(group: Sequence[Outcome]) -> float:
    """How much longer the measured step of the layout that is predicted to be best takes than the
    best measured one, as a share of it.
    """
    chosen = min(group, key=lambda outcome: outcome.predicted_s)
    least = min(outcome.row.step_s or 0.0 for outcome in group)
    return (chosen.row.step_s or 0.0) / least - 1


def regret_table() -> str:
    """For docs/tune.md: regrets of the layouts that are predicted to be best, by group."""
    lines = [
        "| trainings | n | layouts each | regret, median | 9 of 10 | worst | best chosen |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]  # fmt: skip
    groups: dict[str, list[list[Outcome]]] = {}
    for sweep in sweeps(every_outcome(), least=2):
        groups.setdefault(sweep[0].row.group, []).append(sweep)
    for name, group in sorted(groups.items()):
        regrets = [regret(sweep) for sweep in group]
        lines.append(
            f"| {name} | {len(group)} | {median(map(len, group)):g} | {median(regrets):.1%} | "
            f"{ninth_decile(regrets):.1%} | {max(regrets):.1%} | "
            f"{sum(each == 0 for each in regrets)} |"
        )
    return "\n".join(lines) + "\n"


def rank_correlation(group: Sequence[Outcome]) -> float:
    """Spearman's, of published and predicted seconds."""
    published = ranks([outcome.row.step_s or 0.0 for outcome in group])
    planned = ranks([outcome.predicted_s for outcome in group])
    return correlation(published, planned)


def ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    for place, number in enumerate(order):
        places[number] = float(place)
    return places


def table() -> str:
    """For docs/trainings.md: every group of rows, each half apart."""
    outcomes_known = every_outcome()
    groups = {f"**{name}**": group for name, group in by_source(outcomes_known).items()} | by_group(
        outcomes_known
    )
    lines = [cells(name, groups[name]) for name in sorted(groups, key=lambda name: name.strip("*"))]
    return markdown(lines)


def typed_table() -> str:
    """For docs/trainings.md: median errors of each source without a stack and with it, by half."""
    by_stack = [by_source(every_outcome(has_stack=has_stack)) for has_stack in (False, True)]
    lines = ["| rows | half A: without | with `--stack` | half B: without | with `--stack` |",
             "| :-- | --: | --: | --: | --: |"]  # fmt: skip
    for name in sorted(by_stack[0]):
        ratios = [
            [outcome.ratio for outcome in groups[name] if outcome.half == half]
            for half in "AB"
            for groups in by_stack
        ]
        errors = [f"{error(half):.1%}" if half else "" for half in ratios]
        lines.append(f"| {name} | {' | '.join(errors)} |")
    return "\n".join(lines) + "\n"


def ranges_table() -> str:
    """For docs/trainings.md: how many published steps lie between best and slow, by source."""
    lines = ["| source | n | between best and slow | as typed without `--stack` |",
             "| :-- | --: | --: | --: |"]  # fmt: skip
    groups = [by_source(every_outcome(has_stack=has_stack)) for has_stack in (True, False)]
    for name, group in sorted(groups[0].items()):
        shares = [
            sum(outcome.is_in_range for outcome in one[name]) / len(one[name]) for one in groups
        ]
        lines.append(f"| {name} | {len(group)} | {shares[0]:.0%} | {shares[1]:.0%} |")
    return "\n".join(lines) + "\n"


VTRAIN_PERCENT = {"vtrain, A100, one node": 8.37, "vtrain, A100, many nodes": 14.73}
"""Mean errors that vTrain's authors state of their own rows (arXiv:2312.12391, section IV), with
operators profiled on an A100 of the same cluster."""


def ranking_table() -> str:
    """For docs/trainings.md: mean errors of the same rows by ways to predict a step."""
    lines = ["| rows | n | torchtally | vTrain | FLOPs over MFU 0.4 | FLOPs over peak |",
             "| :-- | --: | --: | --: | --: | --: |"]  # fmt: skip
    known = every_outcome()
    vtrain = [outcome for outcome in known if outcome.row.source.name == "vtrain"]
    others = [outcome for outcome in known if outcome.row.source.name != "vtrain"]
    for name, group in sorted({**by_group(vtrain), **by_source(others)}.items()):
        measured = [outcome.row.step_s or 1.0 for outcome in group]
        ways = (
            [outcome.predicted_s for outcome in group],
            [outcome.ideal_s / 0.4 for outcome in group],
            [outcome.ideal_s for outcome in group],
        )
        ours, at_mfu, at_peak = (
            mean(abs(each / step - 1) for each, step in zip(way, measured, strict=True))
            for way in ways
        )
        theirs = f"{VTRAIN_PERCENT[name]:.1f}%" if name in VTRAIN_PERCENT else ""
        lines.append(
            f"| {name} | {len(group)} | {ours:.1%} | {theirs} | {at_mfu:.1%} | {at_peak:.1%} |"
        )
    return "\n".join(lines) + "\n"


def memory_table() -> str:
    """For docs/trainings.md: memory of the fullest chip, predicted over published, by source."""
    lines = [
        "| source | n | ratio | error | p90 | worst |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for source in SOURCES:
        ratios = [
            predicted(row).memory.total.value / 2**30 / row.memory_gib
            for row in trainings(source)
            if row.memory_gib and row.step_s
        ]
        if len(ratios) >= LEAST_ROWS:
            errors = [abs(ratio - 1) for ratio in ratios]
            lines.append(
                f"| {source.name} | {len(ratios)} | {median(ratios):.2f} | {median(errors):.1%} | "
                f"{ninth_decile(errors):.1%} | {max(ratios, key=lambda each: abs(each - 1)):.2f} |"
            )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    outcomes_known = outcomes()
    show(
        "Predicted over published step times",
        COLUMNS,
        [cells(name, group) for name, group in by_group(outcomes_known).items()],
    )
    ordered = sweeps(outcomes_known)
    correlations = [rank_correlation(group) for group in ordered if group]
    print(f"{len(ordered)} trainings in several layouts: rank correlation, median "
          f"{median(correlations):.2f}")  # fmt: skip
    print(regret_table(), end="")
    write(
        args.json,
        {
            "rows": [
                {
                    "group": outcome.row.group,
                    "line": outcome.row.line,
                    "half": outcome.row.half,
                    "published_s": outcome.row.step_s,
                    "predicted_s": outcome.predicted_s,
                    "best_s": outcome.best_s,
                }
                for outcome in outcomes_known
            ]
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
