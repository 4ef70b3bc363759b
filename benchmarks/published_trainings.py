"""Step times of a thousand published trainings beside what `tally plan` predicts for their layouts.

The rows are facts of public repositories, in `benchmarks/trainings/`: what a table prints, with its
line. Everything else that a price needs (which kernels ran, what overlapped) is in `SOURCES`, from
the code that each repository ships. Each row belongs to half A or B by its number in the table:
constants are learnt on half A of one source, and tried on its half B and on all others.

    python -m benchmarks.published_trainings [--json FILE]
"""

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import correlation, median
from typing import Any, NamedTuple

from benchmarks.halves import COLUMNS, cells, markdown
from benchmarks.measuring import parser, show, write
from torchtally.chips import Cluster
from torchtally.chips.chip import Link, Node
from torchtally.chips.clusters import cluster
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.overlap import Overlap, overlap_of
from torchtally.plan.parallel.pace import TYPICAL, Host, Pace
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.recipes import recipe
from torchtally.timing.roofline.attention import Fused

FOLDER = Path(__file__).with_name("trainings")

NO_OVERLAP = overlap_of(data=0.0)
"""Megatron-LM reduced gradients after the last backward pass until `--overlap-grad-reduce`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A repository's table, and what its rows have in common."""

    name: str
    citation: str
    model: Callable[[str, int], Model]
    """By the row's word and its sequence length."""
    recipes: Mapping[str, str]
    """Of ours, by the row's precision."""
    kernel: AttentionKernel = AttentionKernel.FLASH
    implementation: Implementation = Implementation.FUSED
    overlap: Overlap = field(default_factory=overlap_of)
    fused: Fused | None = None
    host: Host = Host.EAGER

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.csv"


@dataclass(frozen=True, slots=True)
class Training:
    """One row of a table."""

    source: Source
    line: str
    model: Model
    cluster: Cluster
    sequence: int
    layout: Layout
    recomputed: float
    """Of the layers, the share that the layout's recomputation is of."""
    recipe: str
    step_s: float | None
    """None: it ran out of memory."""
    memory_gib: float | None
    half: str
    release: str

    @property
    def group(self) -> str:
        """Rows that are summed up together: a source's on one generation of chips."""
        generation = self.cluster.chip.sm.generation
        chip = {"Ampere": "A100", "Hopper": "H100"}.get(generation, generation)
        kind = " mixtures" if self.model.is_mixture else ""
        nodes = ""
        if self.source.name == "vtrain":
            nodes = ", one node" if self.cluster.count <= 8 else ", many nodes"
        return f"{self.source.name}{kind}, {chip}{nodes}"


def gpt(word: str, sequence: int, *, vocabulary: int, is_learned: bool, **fields: Any) -> Model:
    """A GPT with layer norms: "1024x24x16" is width, layers, heads."""
    width, layers, heads = map(int, word.split("x"))
    has_bias = fields.pop("has_bias", True)
    return Model(
        name=f"GPT {width} x {layers}", width=width, vocabulary=vocabulary, is_tied=True,
        norm="layer", positions=sequence if is_learned else 0, dropout=fields.pop("dropout", 0.1),
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(
                    heads=heads, kv_heads=heads, head_dim=width // heads, has_bias=has_bias,
                    has_output_bias=has_bias, is_fused=True, is_rotary=False,
                ),
                feed_forward=FeedForward(
                    width=4 * width, is_gated=False, activation="gelu", has_bias=has_bias
                ),
            ),
        ),
    )  # fmt: skip


def megatron_gpt(word: str, sequence: int) -> Model:
    """GPT-2's vocabulary, padded to a multiple of 128."""
    return gpt(word, sequence, vocabulary=50304, is_learned=True)


def bloom(word: str, sequence: int) -> Model:
    """tr11-176B-ml.slurm: ALiBi, a vocabulary of 250,880."""
    return gpt(word, sequence, vocabulary=250880, is_learned=False)


MPT = {
    "125m": "768x12x12", "350m": "1024x24x16", "760m": "1536x24x12", "1b": "2048x24x16",
    "3b": "2560x32x20", "7b": "4096x32x32", "13b": "5120x40x40", "30b": "7168x48x56",
    "70b": "8192x80x64",
}  # fmt: skip
"""scripts/train/yamls/pretrain/mpt-*.yaml: d_model, n_layers, n_heads."""


def mpt(word: str, sequence: int) -> Model:
    """Without biases or dropout."""
    return gpt(MPT[word], sequence, vocabulary=50368, is_learned=True, has_bias=False, dropout=0.0)


def known(word: str, sequence: int) -> Model:
    return known_model(word)


SOURCES = (
    Source(
        "vtrain", "VIA-Research/vTrain @f8dda84 data/ground_truth_{single,multi}.csv",
        megatron_gpt, {"fp16": "mixed-fp16"}, AttentionKernel.MATH, overlap=NO_OVERLAP,
    ),
    Source(
        "llm_foundry", "mosaicml/llm-foundry @8c8dd48 scripts/train/benchmarking/README.md",
        mpt,
        {"bf16 PURE": "mixed", "bf16 DEFAULT": "megatron", "amp_bf16 DEFAULT": "megatron",
         "amp_bf16 PURE": "mixed", "amp_fp8 DEFAULT": "fp8", "fp8 DEFAULT": "fp8"},
        implementation=Implementation.EAGER, fused=Fused.FLASH_1,
    ),
    Source(
        "bigscience",
        "bigscience-workshop/bigscience @9e64ede train/tr11-176B-ml/chronicles-prequel.md",
        bloom, {"fp16": "ds-fp16", "bf16": "ds-bf16"}, AttentionKernel.MATH,
        overlap=NO_OVERLAP,
    ),
    Source(
        "megatron_bridge",
        "NVIDIA-NeMo/Megatron-Bridge @067f987 docs/performance-summary-archive.md",
        known, {"BF16": "megatron", "FP8": "fp8-current", "FP8-CS": "fp8-current",
                "FP8-MX": "mxfp8", "MXFP8": "mxfp8"},
        # "tp_comm_overlap = bool(tensor_model_parallel_size > 1)", scripts/performance/utils.
        overlap=overlap_of(tensor=1.0), host=Host.GRAPHS,
    ),
    Source(
        "fms_fsdp", "foundation-model-stack/fms-fsdp @5a296af README.md", known,
        {"bf16": "mixed"}, fused=Fused.FLASH, host=Host.COMPILED,
    ),
    Source(
        "torchtitan", "pytorch/torchtitan @b5bcd76 benchmarks/, docs/performance.md", known,
        {"fp8": "fp8", "amp": "amp"}, fused=Fused.FLASH, host=Host.COMPILED,
    ),
)  # fmt: skip


def trainings(source: Source) -> Iterator[Training]:
    with source.file.open(newline="") as file:
        for row in csv.DictReader(file):
            yield _training(source, row)


def _training(source: Source, row: Mapping[str, str]) -> Training:
    def number(name: str, default: int = 1) -> int:
        return int(row.get(name) or default)

    tensor, chunks, sequence = number("tensor"), number("chunks"), number("sequence")
    recompute, _, recomputed = row["recompute"].partition(":")
    layout = Layout(
        data=number("data"), shard=Sharding(row["shard"]),
        shard_group=number("shard_group", 0) or None, tensor=tensor,
        is_sequence_parallel=tensor > 1 and source.kernel is AttentionKernel.FLASH,
        pipeline=number("pipeline"), virtual_stages=chunks,
        schedule=Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B,
        context=number("context"), expert=number("expert"),
        expert_tensor=1 if min(tensor, number("expert")) > 1 else None,  # as in all its recipes
        micro_batch=number("micro_batch"), micro_batches=number("micro_batches"),
        recompute=Recompute(recompute),
        kernel=source.kernel, implementation=source.implementation,
    )  # fmt: skip
    return Training(
        source, row.get("line", ""), source.model(row["model"], sequence),
        wired(cluster(f"{row['gpus']}x{row['chip']}"), row.get("gbit_per_gpu", "")), sequence,
        layout, float(recomputed or 1), source.recipes[row["precision"]],
        _float(row.get("step_s")),
        _float(row.get("memory_gib")), row["half"], row.get("release", ""),
    )  # fmt: skip


def _float(text: str | None) -> float | None:
    return float(text) if text else None


def wired(chips: Cluster, gbit_per_gpu: str) -> Cluster:
    """With the network that the source names, where it does."""
    if not gbit_per_gpu:
        return chips
    link = Link(f"{gbit_per_gpu} Gbit/s a GPU", int(gbit_per_gpu) * 1e9 / 8)
    node = chips.chip.node
    node = replace(node, network=link) if node else Node(8, "as published", "", link)
    return replace(chips, chip=replace(chips.chip, node=node))


def predicted(
    row: Training, pace: Pace = TYPICAL, pricings: dict[object, Pricing] | None = None
) -> Step:
    """Trainings of one model on the same chips share their `pricings`."""
    key = (
        row.source.name, row.model.name, row.model.kinds[0].attention.heads, row.sequence,
        row.cluster.chip.name, row.cluster.count, row.recipe, host_of(row),
        overlap_of_row(row).shares["expert"],
    )  # fmt: skip
    shared = {} if pricings is None else pricings
    if key not in shared:
        shared[key] = _pricing(row, pace)
    return shared[key].step(row.layout)


EXPERTS_BESIDE = 0.27
"""Of a layer's compute, what ran beside experts' exchange where Megatron-LM overlaps it with
another micro-batch: 3.96 of 14.57 s of Qwen3 30B-A3B on 16 H100s (NVIDIA-NeMo/Megatron-Bridge
@067f987, skills/nemo-mbridge-perf-expert-parallel-overlap/SKILL.md: 36.55 % of communication beside
products and attention, 0.11 % or 9.079 ms without, of 22.821 s in which the chip was busy)."""


class Graphs(NamedTuple):
    """How a release of Megatron-Bridge runs a mixture."""

    host: Host
    is_exchange_overlapped: bool


EAGER = Graphs(Host.EAGER, is_exchange_overlapped=False)
HOSTS = {"none": Host.EAGER, "dense": Host.DENSE_GRAPHS, "all": Host.GRAPHS}


@cache
def _graphs() -> Mapping[tuple[str, str, str], list[tuple[str, Graphs]]]:
    """By model, chip and recipe: from which release on, the oldest first. As the repository's tags
    v0.2.0 to v0.5.1 have it in scripts/performance/configs (`cuda_graph_scope`: with attention
    "dense", of a full iteration "all"; `moe_a2a_overlap`).
    """
    runs: dict[tuple[str, str, str], list[tuple[str, Graphs]]] = {}
    with (FOLDER / "megatron_bridge_recipes.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            graphs = Graphs(HOSTS[row["graphs"]], row["overlap"] == "yes")
            key = (row["model"], row["chip"], row["recipe"])
            runs.setdefault(key, []).append((row["since"], graphs))
    return runs


def graphs_of(row: Training) -> Graphs:
    """What its release's recipe says of this mixture."""
    runs = _graphs().get((row.model.name, row.cluster.chip.name, row.recipe), ())
    return next((graphs for since, graphs in reversed(runs) if since <= row.release), EAGER)


def overlap_of_row(row: Training) -> Overlap:
    """A recipe's exchange of experts beside compute, and what its source has in common."""
    if row.model.is_mixture and graphs_of(row).is_exchange_overlapped:
        return Overlap({**row.source.overlap.shares, "expert": EXPERTS_BESIDE})
    return row.source.overlap


LARGEST_ASYNCHRONOUS = 160
"""GPUs on which bigscience's trainings ran without CUDA_LAUNCH_BLOCKING=1: on 320 they always hung,
on 160 they might ("dealing with JZ hanging on the large model"), and so it was set "for a time
being" ("Hanging Issue"). On 80 it took 6.3 % of the speed, on 160 none."""


def host_of(row: Training) -> Host:
    if row.model.is_mixture:
        return graphs_of(row).host
    if row.source.name == "bigscience" and row.cluster.count > LARGEST_ASYNCHRONOUS:
        return Host.BLOCKING
    return row.source.host


def _pricing(row: Training, pace: Pace) -> Pricing:
    return Pricing(
        Workload(
            model=row.model, cluster=row.cluster, sequence=row.sequence,
            recipe=recipe(row.recipe), optimizer=optimizer("adamw"), overlap=overlap_of_row(row),
            fused=row.source.fused, host=host_of(row), pace=pace,
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training, published and predicted: seconds of a step."""

    row: Training
    predicted_s: float
    best_s: float
    """With everything at its best."""
    slow_s: float

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
    )


def outcomes(sources: Iterable[Source] = SOURCES, every: int = 1) -> list[Outcome]:
    """Of every so many of vTrain's rows, and of all others."""
    pricings: dict[object, Pricing] = {}
    return [
        outcome(row, pricings)
        for source in sources
        for number, row in enumerate(trainings(source))
        if row.step_s and (source.name != "vtrain" or number % every == 0)
    ]


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
    groups: dict[tuple[str, int, str, int, int, str], list[Outcome]] = {}
    for outcome in outcomes_known:
        row = outcome.row
        heads = row.model.kinds[0].attention.heads
        key = (row.group, row.cluster.count, f"{row.model.name}, {heads}", row.layout.global_batch,
               row.sequence, row.recipe)  # fmt: skip
        groups.setdefault(key, []).append(outcome)
    return [group for group in groups.values() if len(group) >= least]


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
    outcomes_known = outcomes()
    groups = {f"**{name}**": group for name, group in by_source(outcomes_known).items()} | by_group(
        outcomes_known
    )
    lines = [cells(name, groups[name]) for name in sorted(groups, key=lambda name: name.strip("*"))]
    return markdown(lines)


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
