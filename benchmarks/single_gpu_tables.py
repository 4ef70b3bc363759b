"""How far predictions for one GPU are from what others measured: the tables of docs/accuracy.md.

Rows are those of `benchmarks/published_models.py`, with its predictions as they stand in the files,
and operators, which are predicted here, since that takes no run.

    python -m benchmarks.single_gpu_tables
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from msgspec import structs

from benchmarks import published_kernels
from benchmarks.halves import LEAST_ROWS, ninth_decile
from benchmarks.published_models import FILES, FOLDER, NEUSIGHT, Row, rows
from benchmarks.published_times import call, tensor
from torchtally.chips import chip
from torchtally.timing.roofline.datasheet import datasheet_kernel
from torchtally.trace import Call, TensorSpec
from torchtally.views.time_range import ERRORS
from torchtally.work import cost_of

OTHERS = FOLDER / "others.csv"
KERNELS = Path(__file__).with_name("kernels")
PROFILED = {"H100-SXM", "V100-SXM-16GB", "RTX-2080-Ti"}
"""Chips besides, whose profiles or sweeps gave constants (benchmarks/README.md)."""
TRAININGS = Path(__file__).parents[1] / "docs" / "trainings.md"
DROPPED_BEYOND_MIB, DROPPED_FAKE_MIB = 39.5 * 1024, 36 * 1024
"""Of a GPU of 40 GB: what ran out of memory stands in the table like that, without a word."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Predicted over measured: now, and when the row was first seen."""

    label: str
    now: float
    first: float | None


def error(ratio: float) -> float:
    return abs(ratio - 1)


# Operators ----------------------------------------------------------------------------------------


def float32(*shape: int, argument: str = "") -> TensorSpec:
    return tensor(*shape, argument=argument, dtype="float32")


def operator_call(name: str, sizes: Sequence[int]) -> Call:
    """As NeuSight names it and its sizes (scripts/asplos/data/dataset/test)."""
    if name in ("bmm", "linear"):
        B, M, K, N = sizes
        if name == "bmm":
            pair = (float32(B, M, K, argument="self"), float32(B, K, N, argument="mat2"))
            return call("aten.bmm", pair, (float32(B, M, N),))
        bias, weight = float32(N, argument="self"), float32(N, K, argument="mat2")
        weight = structs.replace(weight, shape=(K, N), stride=(1, K))
        return call(
            "aten.addmm", (bias, float32(B * M, K, argument="mat1"), weight), (float32(B * M, N),)
        )
    B, H = sizes
    x, result = float32(B, H, argument="self"), (float32(B, H),)
    if name == "softmax":
        return call("aten._softmax", (x,), result, dim=1, half_to_float=False)
    if name == "ln":
        inputs = (
            float32(B, H, argument="input"), float32(H, argument="weight"),
            float32(H, argument="bias"),
        )  # fmt: skip
        moments = (float32(B, 1), float32(B, 1))
        return call(
            "aten.native_layer_norm", inputs, (*result, *moments), normalized_shape=(H,), eps=1e-5
        )
    if name in ("add", "mul", "div", "pow"):
        second = float32(B, H, argument="exponent" if name == "pow" else "other")
        return call(f"aten.{name}", (x, second), result)
    if name in ("addu", "mulu", "divu", "powu"):
        given = {"exponent" if name == "powu" else "other": 0.5}
        return call(f"aten.{name[:-1]}", (x,), result, **given)
    return call(f"aten.{name}", (x,), result)


CLASSES = {
    "bmm": "batched products", "linear": "linear layers", "softmax": "softmax",
    "ln": "layer norm",
}  # fmt: skip
"""All others are elementwise."""


def operators() -> dict[tuple[str, str], list[Ratio]]:
    """By (class, chip)."""
    ratios: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    with (FOLDER / "operators.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            priced = operator_call(line["operator"], [*map(int, line["shape"].split("x"))])
            predicted_s = datasheet_kernel(priced, *cost_of(priced), chip(line["chip"])).seconds
            measured = float(line["measured_ms"])
            key = CLASSES.get(line["operator"], "elementwise"), line["chip"]
            label = f"{line['operator']} {line['shape']}"
            now, first = 1e3 * predicted_s / measured, float(line["first_ms"]) / measured
            ratios[key].append(Ratio(label, now, first))
    return ratios


# Whole models -------------------------------------------------------------------------------------

SOURCES = {
    "neusight": "float32, BERT, GPT-2, GPT-3, OPT (NeuSight)",
    "timm": "float16 autocast, timm's models",
    "transformers": "BERT-large by Trainer, 2022 (transformers)",
    "lambda": "float16, BERT for SQuAD, ResNet-50, SSD300 (Lambda)",
}


def is_counted(row: Row) -> bool:
    """It has a prediction, and its run did not die: of GPUMemNet those are not marked."""
    if row.source != "gpumemnet":
        return bool(row.predicted)
    fake = fake_tensor_mib().get((row.model, row.batch), 0.0)
    measured = float(row.measured)
    return fake <= measured < DROPPED_BEYOND_MIB and fake <= DROPPED_FAKE_MIB


def times(kind: str) -> dict[tuple[str, str], list[Ratio]]:
    """By (source's rows, chip): "forward", "step" or "compiled"."""
    ratios: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for name in FILES:
        for row in rows(name):
            if row.quantity != "ms" or row.ratio is None:
                continue
            shown = "compiled" if row.is_compiled else "forward" if row.run == "forward" else "step"
            if shown == kind:
                later = ", drawn later" if row.source == "timm" and name != FILES[0] else ""
                label = f"{row.model} {row.batch} x {row.size} {row.options}".strip()
                key = SOURCES[row.source] + later, row.chip
                ratios[key].append(Ratio(label, row.ratio, row.first_ratio))
    return ratios


def fake_tensor_mib() -> dict[tuple[str, int], float]:
    return {
        (line["model"], int(line["batch"])): float(line["predicted"])
        for line in others()
        if line["tool"] == "FakeTensor"
    }


def others() -> list[dict[str, str]]:
    with OTHERS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Tables -------------------------------------------------------------------------------------------

COLUMNS = ("rows", "chip", "n", "ratio", "median error", "p90", "worst", "first pass")


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruler = (":--", *("--:",) * (len(columns) - 1))
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, ruler, *lines))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def time_cells(name: str, on: str, ratios: Sequence[Ratio]) -> tuple[str, ...]:
    """Of too few rows for a median, each row's ratio."""
    errors = [error(row.now) for row in ratios]
    firsts = [error(row.first) for row in ratios if row.first is not None]
    if len(ratios) < LEAST_ROWS:
        each = ", ".join(f"{row.now:.2f}" for row in ratios)
        return name, on, str(len(ratios)), each, "", "", "", ""
    return (
        name, on, str(len(ratios)), f"{median(row.now for row in ratios):.2f}",
        percent(median(errors)), percent(ninth_decile(errors)),
        f"{max(ratios, key=lambda row: error(row.now)).now:.2f}",
        percent(median(firsts)) if firsts else "",
    )  # fmt: skip


def time_lines(cells: dict[tuple[str, str], list[Ratio]]) -> list[tuple[str, ...]]:
    return [time_cells(name, on, ratios) for (name, on), ratios in sorted(cells.items())]


def by_chip(kinds: Sequence[str]) -> dict[tuple[str, str], list[Ratio]]:
    """All whole models of a chip, whatever their source."""
    grouped: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for kind in kinds:
        for (_, on), ratios in times(kind).items():
            grouped[kind, on] += ratios
    return grouped


def seen_chips() -> set[str]:
    """Chips with a kernel that gave a constant: those of tables of operators, and of profiles."""
    with (FOLDER / "operators.csv").open(newline="", encoding="utf-8") as file:
        seen = {line["chip"] for line in csv.DictReader(file)} | PROFILED
    for path in KERNELS.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            seen |= {line["chip"] for line in csv.DictReader(file)}
    return seen


def unseen_lines() -> list[tuple[str, ...]]:
    seen = seen_chips()
    return [
        time_cells({"forward": "forward passes", "step": "steps"}[kind], on, ratios)
        for (kind, on), ratios in sorted(by_chip(("forward", "step")).items())
        if on not in seen
    ]


def is_in_range(row: Ratio, on: str) -> bool:
    """The time measured lies in the range that a report states."""
    ninth = ERRORS["fitted" if chip(on).is_measured else "data sheet"].ninth
    return row.now / (1 + ninth) <= 1 <= row.now / (1 - ninth)


def range_lines() -> list[tuple[str, ...]]:
    """By source, on all chips: forward passes and steps, eager."""
    held: dict[str, list[bool]] = defaultdict(list)
    for kind in ("forward", "step"):
        for (source, on), ratios in times(kind).items():
            held[source] += [is_in_range(row, on) for row in ratios]
    return [
        (source, str(len(each)), f"{sum(each) / len(each):.0%}")
        for source, each in sorted(held.items())
        if len(each) >= LEAST_ROWS
    ]


@dataclass(frozen=True, slots=True)
class Memory:
    """What became of the rows of memory."""

    allocated: list[Ratio]
    in_range: int
    ranges: int
    outside: list[str]
    right: int
    close: int
    close_that_ran: int
    wrong: list[str]


def is_within(row: Row) -> bool:
    low, _, high = row.predicted.partition("..")
    return float(low) <= float(row.measured) <= float(high)


def memory() -> Memory:
    counted = [row for row in rows(FILES[0]) if is_counted(row)]
    ranges = [row for row in counted if row.quantity == "nvidia_smi_mib"]
    verdicts = [row for row in counted if row.quantity == "fits"]
    right = {"yes": "fits", "no": "does not fit"}
    return Memory(
        allocated=[
            Ratio(f"{row.model} {row.run}", row.ratio, row.first_ratio)
            for row in counted
            if row.quantity == "allocated_gb" and row.ratio is not None
        ],
        in_range=sum(map(is_within, ranges)),
        ranges=len(ranges),
        outside=[f"{row.model} {row.batch}" for row in ranges if not is_within(row)],
        right=sum(row.predicted == right[row.measured] for row in verdicts),
        close=sum(row.predicted == "close" for row in verdicts),
        close_that_ran=sum(row.predicted == "close" and row.measured == "yes" for row in verdicts),
        wrong=[
            f"{row.model} {row.batch} {row.options}".strip()
            for row in verdicts
            if row.predicted not in (right[row.measured], "close")
        ],
    )


def memory_lines() -> list[tuple[str, ...]]:
    ratios = memory()
    errors = [error(row.now) for row in ratios.allocated]
    firsts = [error(row.first) for row in ratios.allocated if row.first is not None]
    verdicts = ratios.right + ratios.close + len(ratios.wrong)
    return [
        ("peak allocated, fine-tuning (litgpt, A100 40 GB)", str(len(errors)),
         f"median error {percent(median(errors))}, worst {percent(max(errors))}; first pass "
         f"{percent(median(firsts))}"),
        ("nvidia-smi (timm on A100 40 GB: GPUMemNet; BERT on V100: transformers)",
         str(ratios.ranges), f"{ratios.in_range} within the stated range"),
        ("fits or not (timm on RTX 3090, litgpt)", str(verdicts),
         f"{ratios.right} right, {len(ratios.wrong)} wrong, {ratios.close} close, of which "
         f"{ratios.close_that_ran} ran"),
    ]  # fmt: skip


MEDIAN_LIMIT, NINTH_LIMIT, OPERATOR_LIMIT, OPERATOR_NINTH_LIMIT = 0.07, 0.20, 0.10, 0.50
"""Whole models in the median and at the ninth decile, operators the same."""


def below_parity() -> list[str]:
    """Chips and classes beyond the limits."""
    misses = []
    for (kind, on), ratios in sorted(by_chip(("forward", "step")).items()):
        if len(ratios) < LEAST_ROWS:
            misses.append(f"{kind}, {on}: {len(ratios)} row alone, which shows little")
            continue
        errors = [error(row.now) for row in ratios]
        if median(errors) > MEDIAN_LIMIT or ninth_decile(errors) > NINTH_LIMIT:
            worst = max(ratios, key=lambda row: error(row.now))
            misses.append(
                f"{kind}, {on}: {percent(median(errors))} and "
                f"{percent(ninth_decile(errors))}; worst "
                f"{worst.label}, {worst.now:.2f}"
            )
    for (name, on), ratios in sorted(operators().items()):
        errors = [error(row.now) for row in ratios]
        middle, ninth = median(errors), ninth_decile(errors)
        if middle > OPERATOR_LIMIT or ninth > OPERATOR_NINTH_LIMIT:
            misses.append(f"{name}, {on}: {percent(middle)} and {percent(ninth)}")
    left = memory()
    misses += [f"nvidia-smi outside of the range: {name}" for name in left.outside]
    return misses + [f"wrong verdict: {name}" for name in left.wrong]


VOCABULARIES = {"bert": 30_522, "gpt2": 50_257, "opt": 50_272}
USUAL_MFU = 0.4


def model_flops(row: Row) -> float:
    """FLOPs of one of NeuSight's models, an addition and a multiplication apart.

    D: width.  F: width of the feed-forward layer.  T: tokens of a sequence.  V: vocabulary.
    """
    family, sizes = NEUSIGHT[row.model]
    D = sizes.get("hidden_size") or sizes["n_embd"]
    layers = sizes.get("num_hidden_layers") or sizes["n_layer"]
    F = sizes.get("intermediate_size") or sizes.get("ffn_dim") or 4 * D
    has_head = family != "bert" or row.run != "forward"  # forward it classifies sequences
    V = VOCABULARIES[family] if has_head else 0
    token = layers * (8 * D * D + 4 * D * F + 4 * row.size * D) + 2 * D * V
    return token * row.batch * row.size * (1 if row.run == "forward" else 3)


def beside_others() -> list[tuple[str, ...]]:
    """Mean errors over the same rows."""
    ours = {
        (row.chip, row.model, row.run, str(row.batch)): row.ratio
        for row in rows(FILES[0])
        if row.source == "neusight" and row.ratio is not None
    }
    at_mfu = {
        (row.chip, row.model, row.run, str(row.batch)): 1e3 * model_flops(row)
        / (USUAL_MFU * chip(row.chip).peak_flop_per_s("float32")) / float(row.measured)
        for row in rows(FILES[0])
        if row.source == "neusight"
    }  # fmt: skip
    theirs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    same: dict[tuple[str, str], set[tuple[str, str, str, str]]] = defaultdict(set)
    for line in others():
        if line["error_percent"]:
            key = line["chip"], line["model"], line["run"], line["batch"]
            theirs[line["tool"], line["run"], line["chip"]].append(float(line["error_percent"]))
            same[line["run"], line["chip"]].add(key)
    tools = ("Roofline", "Habitat", "Li et al.", "NeuSight")
    return [
        (
            f"{run}, {on}", str(len(keys)), percent(mean(error(ours[key]) for key in keys)),
            *(
                f"{mean(theirs[tool, run, on]):.1f} %" if theirs[tool, run, on] else ""
                for tool in reversed(tools)
            ),
            percent(mean(error(at_mfu[key]) for key in keys)),
        )
        for (run, on), keys in sorted(same.items())
    ]  # fmt: skip


def fake_tensor_line() -> str:
    """What its sum of fake tensors says of the same rows as nvidia-smi."""
    fakes = fake_tensor_mib()
    counted = [row for row in rows(FILES[0]) if row.source == "gpumemnet" and is_counted(row)]
    fake = [error(fakes[row.model, row.batch] / float(row.measured)) for row in counted]
    ends = [[*map(float, row.predicted.split(".."))] for row in counted]
    ours = [
        error((low + high) / 2 / float(row.measured))
        for (low, high), row in zip(ends, counted, strict=True)
    ]
    return (
        f"Of {len(counted)} timm trainings' nvidia-smi, PyTorch's FakeTensor is "
        f"{percent(median(fake))} off in the median (GPUMemNet's table), the middle of our range "
        f"{percent(median(ours))}."
    )


def table_of_trainings(name: str) -> str:
    """The table that docs/trainings.md has in this region."""
    text = TRAININGS.read_text(encoding="utf-8")
    part = text.partition(f"<!-- generated: {name} -->\n")[2].partition("<!-- end -->")[0]
    return part.strip().replace("_", "-") + "\n"


def cluster_lines() -> list[tuple[str, ...]]:
    """Of docs/trainings.md: whole sources, typical pace."""
    lines = []
    for line in TRAININGS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| **"):
            name = cells[0].strip("*").replace("_", "-")
            lines.append((name, cells[1], *cells[4:6], *cells[7:10]))
    return lines


def typed_lines() -> list[tuple[str, ...]]:
    """Of docs/trainings.md: median errors without a stack and with it."""
    rows_of_table = [
        line.strip("|").split("|") for line in table_of_trainings("typed").splitlines()[2:]
    ]
    return [tuple(cell.strip() for cell in cells) for cells in rows_of_table]


SECTIONS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("Memory", lambda: markdown(("what", "n", "predicted"), memory_lines())),
    ("Forward passes, eager", lambda: markdown(COLUMNS, time_lines(times("forward")))),
    ("Training steps, eager", lambda: markdown(COLUMNS, time_lines(times("step")))),
    ("Compiled", lambda: markdown(COLUMNS, time_lines(times("compiled")))),
    ("Kernels in float32 (NeuSight)", lambda: markdown(COLUMNS, time_lines(operators()))),
    (
        "Products, attention and collectives of seven chips ([by chip](kernels_by_chip.md))",
        lambda: markdown(
            ("class", "chips", "n", "half A: error", "half B: error", "p90", "worst chip"),
            published_kernels.summary(),
        ),
    ),
    (
        "Clusters ([trainings](trainings.md), typical pace)",
        lambda: markdown(
            ("source", "n", "half A: median", "error", "half B: median", "error", "p90"),
            cluster_lines(),
        ),
    ),
    (
        "Clusters as typed ([median error](trainings.md#as-typed) without `--stack` and with it)",
        lambda: markdown(
            ("source", "half A: without", "with", "half B: without", "with"), typed_lines()
        ),
    ),
    ("Clusters: memory of the fullest chip", lambda: table_of_trainings("training_memory")),
    ("Chips none of whose kernels gave a constant", lambda: markdown(COLUMNS, unseen_lines())),
    (
        "Ranges: of forward passes and steps, how many lie in the stated one",
        lambda: markdown(("rows", "n", "within"), range_lines()),
    ),
    ("Ranges of plans", lambda: table_of_trainings("training_ranges")),
)

KEPT_BACK = """\
### Rows kept back

Half B of every table above gave no constant, nor did any row of NeuSight's models, timm's,
Lambda's, fms-fsdp, torchtitan, Megatron-Bridge, MLPerf and prime-rl. Others hold back from this
repository, to judge it by: the other halves of [kernels by chip](kernels_by_chip.md), of MLPerf's
entries and of prime-rl's baselines, and all kernels of a B300 and an L40S. What they find is not
on this page. `published_models` predicts Lambda's Hopper by tiles of cuBLAS 12, which its logs
ran; `tally run` assumes the newest.

"""

OPENING = """\
# Accuracy

## Everything, beside what others measured

Public measurements on {chips} chips, drawn at random before anything was predicted, and made
again by `python -m benchmarks.published_models` (rows, sources and procedures are in
`benchmarks/single_gpu/`; of the first sample a random half). *Ratio* is predicted over measured in
the median, *error* is |ratio - 1|, *p90* its ninth decile, *worst* the ratio farthest from 1,
*first pass* the median error when rows were first seen. No constant is fitted to a whole model; two
rules hold where they do because of some: GeForce's halved rate hides the writing of results
(timm's forward passes on an RTX 3090 and 4090), and cuDNN's trials find kernels for few channels
(timm's channels-last networks on an RTX 4090). Constants of kernels come from half of the float32
operators, from published sweeps of a V100, an A100, an L4 and an RTX 2080 Ti, from chips' published
rates and from three models' profiles on an H100 ([benchmarks](../benchmarks/README.md)): chips
without a row there, and all rows drawn later, are unseen. Lambda's are the median iterations of its
logs. Times are those of long runs, when a chip has come to its limit of power.

"""


def opening() -> str:
    """What docs/accuracy.md begins with."""
    chips = {row.chip for name in FILES for row in rows(name) if row.predicted}
    parts = [OPENING.format(chips=len(chips))]
    parts += [f"### {title}\n\n{table()}\n" for title, table in SECTIONS]
    listed = "".join(f"- {line}\n" for line in below_parity()) or "None.\n"
    parts.append(
        "### Below parity\n\nBeyond 7 % in the median or 20 % at the ninth decile of a chip's "
        "whole models, 10 % and 50 % of\nits operators, and what too few rows say:\n\n"
        + listed
        + "\n"
    )
    parts.append(KEPT_BACK)
    beside = markdown(
        (
            "mean error",
            "n",
            "torchtally",
            "NeuSight",
            "Li et al.",
            "Habitat",
            "roofline",
            "MFU 0.4",
        ),
        beside_others(),
    )
    parts.append(
        "### Beside other predictors\n\nThe same rows, the others' errors as NeuSight's authors "
        "published them (scripts/asplos/summary @6945927).\nNeuSight was trained on operators of "
        "V100 and A100 40 GB among others; L4 and A100 80 GB it never saw. The last column is the "
        f"model's\nFLOPs at 40 % of the float32 peak.\n\n{beside}\n"
        "Trainings on clusters, by what `tally plan --stack` answers, by what vTrain's authors "
        "state (arXiv:2312.12391)\nand by the model's FLOPs alone:\n\n"
        f"{table_of_trainings('training_ranking')}\n"
        f"{fake_tensor_line()}\n"
    )
    return "".join(parts)


if __name__ == "__main__":
    print(opening())
