"""The simulation against what was measured: the same cases, by the same code, on a virtual GPU.

python -m tests.truth.compare              docs/accuracy.md, on stdout, of all corpora
python -m tests.truth.compare it.json      of these
"""

import argparse
import gc
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import torch

from benchmarks.single_gpu_tables import opening
from tests.truth.add import added
from tests.truth.add import table as table_of_added
from tests.truth.cases import Case, case_of
from tests.truth.collect import FOLDER, Corpus, Entry, read_corpus, settings
from tests.truth.measure import Measurement, measure
from tests.truth.timing import Times
from torchtally.chips import Chip, chip
from torchtally.ledger import account
from torchtally.timing.hosts import VIRTUAL
from torchtally.timing.prediction import Prediction
from torchtally.timing.roofline import lists
from torchtally.timing.targets import roofline
from torchtally.torch_private import releases
from torchtally.trace import Ending
from torchtally.tracer.session import recording
from torchtally.units import format_bytes, format_seconds
from torchtally.virtual.dispatch import UNIFIED
from torchtally.virtual.session import virtual_gpu

MEDIAN_ALLOCATED_LIMIT = 0.01
ALLOCATED_LIMIT = 0.03
RESERVED_LIMIT = 0.05
WIDTH = 100
"""Of a line of text on the page."""
"""How far from the truth a prediction may be, as a fraction of it."""


@contextmanager
def as_in(release: str) -> Iterator[None]:
    """With what that release of PyTorch decides on a GPU: workspaces, which attention runs."""
    with pytest.MonkeyPatch.context() as patch:
        if "." in release:
            version = releases.version_of(release)
            patch.setattr(releases, "HERE", releases.release_of(version))
            if version < (2, 13):
                patch.setattr(lists, "LIST_LIMITS", lists.OF_4_KB)
        patch.setenv(UNIFIED, "0" if releases.HERE.has_lt_workspace else "1")
        yield


@cache
def predict(case: Case, target: Chip, release: str = torch.__version__) -> Measurement:
    """What `measure` sees of the case on the simulated chip, by that release of PyTorch."""
    kernel_s = Prediction(roofline(target.name)).kernel_s
    with as_in(release), virtual_gpu(target, kernel_s=kernel_s):
        seen = measure(case, "cuda")
    # Each step of the next case looks for garbage: not among what this one imported.
    gc.collect()
    gc.freeze()
    return seen


@dataclass(frozen=True)
class Row:
    """One case, measured and predicted."""

    name: str
    measured: Measurement
    predicted: Measurement

    @property
    def fitted(self) -> bool:
        return not self.measured.out_of_memory

    @property
    def is_said_to_fit(self) -> bool:
        """Never more reserved than the device had free, its context made."""
        available, reserved = self.measured.available_bytes, self.predicted.peak_reserved_bytes
        if self.predicted.out_of_memory:
            return False
        return available is None or reserved is None or reserved <= available

    @property
    def allocated_ratio(self) -> float | None:
        """Predicted over measured peak; None where the case did not run to its end."""
        return self.ratio(self.predicted.peak_allocated_bytes, self.measured.peak_allocated_bytes)

    @property
    def reserved_ratio(self) -> float | None:
        return self.ratio(self.predicted.peak_reserved_bytes, self.measured.peak_reserved_bytes)

    @property
    def phase_ratios(self) -> dict[str, float]:
        """Of allocated bytes, when the build ended and each phase of the last step did."""
        predicted = self.predicted.marks()
        ratios = {
            name: self.ratio(predicted[name].allocated_bytes, mark.allocated_bytes)
            for name, mark in self.measured.marks().items()
            if name in predicted
        }
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    def ratio(self, predicted: int | None, measured: int | None) -> float | None:
        is_whole = self.fitted and not self.predicted.out_of_memory
        return predicted / measured if is_whole and predicted and measured else None


def compare(corpus: Corpus) -> list[Row]:
    """Every case of a corpus that was measured, and its prediction.

    Raises UnknownChipError for a device that cannot be simulated, ValueError for a corpus without
    figures of memory, and for a case that is not what it was when it was measured.
    """
    if corpus.kind == "cpu":
        raise ValueError("a corpus of the host has no figures of memory to compare with")
    target = chip(corpus.device)
    return [
        Row(
            entry.name,
            entry.measurement,
            predict(case_measured(entry, corpus), target, str(corpus.about["torch"])),
        )
        for entry in corpus.entries
        if entry.measurement is not None
    ]


def case_measured(entry: Entry, corpus: Corpus) -> Case:
    case = case_of(entry.name)
    case = case.small() if corpus.is_small else case
    now = settings(case)
    if entry.settings != now:
        changed = sorted(setting for setting in now if now[setting] != entry.settings.get(setting))
        raise ValueError(
            f"{entry.name} is not the case that was measured: {', '.join(changed)} changed.\n"
            "Give the new case a name of its own, or measure it again."
        )
    return case


def percent(fraction: float) -> str:
    """Errors are small: with two decimals, where there are any."""
    if 0 < fraction < 0.00005:
        return "< 0.01 %"
    return f"{100 * fraction:.2f}".rstrip("0").rstrip(".") + " %"


def error(ratio: float) -> float:
    return abs(ratio - 1)


Ratio = Callable[[Row], float | None]


def errors(rows: Iterable[Row], ratio: Ratio) -> list[tuple[float, str]]:
    """How far each prediction is from the truth, and of which case; the worst first."""
    known = [(miss, row.name) for row in rows if (miss := ratio(row)) is not None]
    return sorted(((error(miss), name) for miss, name in known), reverse=True)


def allocated(row: Row) -> float | None:
    return row.allocated_ratio


def reserved(row: Row) -> float | None:
    return row.reserved_ratio


def below_parity(rows: Sequence[Row]) -> list[str]:
    """Every limit that does not hold, in words; empty when all do."""
    misses = []
    known = [far for far, _ in errors(rows, allocated)]
    if known and not median(known) <= MEDIAN_ALLOCATED_LIMIT:
        middle, highest = map(percent, (median(known), MEDIAN_ALLOCATED_LIMIT))
        misses.append(f"peak allocated is {middle} off in the median, limit {highest}")
    for what, ratio, limit in (
        ("allocated", allocated, ALLOCATED_LIMIT),
        ("reserved", reserved, RESERVED_LIMIT),
    ):
        misses += [
            f"{name}: peak {what} is {percent(far)} off, limit {percent(limit)}"
            for far, name in errors(rows, ratio)
            if not far <= limit
        ]
    for row in rows:
        if row.is_said_to_fit and not row.fitted:
            misses.append(f"{row.name}: said to fit, and ran out in {row.measured.stopped_in}")
        if row.fitted and not row.is_said_to_fit:
            misses.append(f"{row.name}: said not to fit, and did")
    return misses


class PredictedStep(NamedTuple):
    """Of a step on batches that the host has ready."""

    step_s: float
    """Beside the CPU that is assumed where none was measured."""
    virtual_s: float
    """Beside that of a virtual machine, which issues operators at 0.43 of its rate."""
    kernel_s: float


StepPredictor = Callable[[Entry, Corpus], PredictedStep]


def predict_step(entry: Entry, corpus: Corpus) -> PredictedStep:
    """By the chip's roofline: the second step of a case, on batches made before."""
    case = case_measured(entry, corpus)
    prediction = roofline(corpus.device)
    chooses_by = Prediction(prediction)
    with as_in(str(corpus.about["torch"])):
        with recording(prediction.chip, script=case.name, prediction=chooses_by) as recorder:
            training = case.train(torch.device("cuda"))
            batches = [training.batch() for _ in range(case.accumulation)]
            for _ in range(2):
                training.step(lambda phase: None, batches)
            trace = recorder.trace(Ending("exit"))
        ledger = account(trace, roofline=prediction)
        beside = ledger.with_predicted_times(replace(prediction, host=VIRTUAL))
    return PredictedStep(ledger.total.seconds, beside.total.seconds, ledger.total.kernel_s)


LOST = "Command Buffer Full"
"""What the profiler says where it dropped events."""
OVERHEADS = (LOST, "Activity Buffer Request")
"""What it took itself."""


@dataclass(frozen=True)
class StepTime:
    """One case's step, measured and predicted."""

    name: str
    times: Times
    predicted: PredictedStep | None
    """None where nobody predicts."""

    @property
    def ratio(self) -> float | None:
        """Predicted over measured, in a row of steps in which the host runs ahead."""
        predicted = self.predicted
        return None if predicted is None else predicted.step_s / self.times.undisturbed_step_s

    @property
    def virtual_ratio(self) -> float | None:
        """The same beside the CPU of a virtual machine."""
        predicted = self.predicted
        return None if predicted is None else predicted.virtual_s / self.times.undisturbed_step_s

    @property
    def kernel_s(self) -> float | None:
        """Measured; None where the profiler did not see all of them."""
        operators = self.times.operators or ()
        if not operators or any(operator.name == LOST for operator in operators):
            return None
        return fsum(each.self_s for each in operators if each.name not in OVERHEADS)

    @property
    def kernel_ratio(self) -> float | None:
        measured_s, predicted = self.kernel_s, self.predicted
        return None if measured_s is None or predicted is None else predicted.kernel_s / measured_s


def step_times(corpus: Corpus, predicted_step: StepPredictor | None = None) -> list[StepTime]:
    """Every case of a real GPU that was timed; none of anything else, whose times mean nothing."""
    if corpus.kind != "gpu":
        return []
    return [
        StepTime(
            entry.name, entry.measurement.times, predicted_step and predicted_step(entry, corpus)
        )
        for entry in corpus.entries
        if entry.measurement is not None and entry.measurement.times is not None
    ]


# The page -------------------------------------------------------------------------------------

INTRODUCTION = f"""\
## Memory, byte for byte

How close the simulation comes to real GPUs. Every case is trained for {{steps}} steps, once on the
device and once simulated, by the same code (`tests/truth/`); both ask `torch.cuda` the same
questions. A ratio is predicted over measured; errors are |ratio - 1|. The limits:

- peak allocated: {percent(MEDIAN_ALLOCATED_LIMIT)} in the median, \
{percent(ALLOCATED_LIMIT)} in the worst case;
- peak reserved: {percent(RESERVED_LIMIT)};
- no "fits" that did not.

Whatever is beyond them is listed as below parity.

A machine with a GPU is measured by `python -m tests.truth.collect`, in some ten minutes.
"""

NO_GPU = """\
**No GPU has been measured yet.** There is no corpus of kind "gpu" in `tests/truth/corpus/`: how
close the figures come to a real device is not known.
"""

STAND_IN = """\
**Not a GPU.** These figures are those of PyTorch's own CUDA build and its own caching allocator on
a stand-in for the driver, which computes nothing. What kernels and libraries take beside their
tensors is in them only as far as they ask PyTorch for it.
"""


Compared = Sequence[tuple[Corpus, Sequence[Row]]]


def accuracy_markdown(compared: Compared, predicted_step: StepPredictor | None = None) -> str:
    """docs/accuracy.md: what each corpus says of the predictions."""
    corpora = [corpus for corpus, _ in compared]
    steps = max(
        (len(entry.measurement.steps) for c in corpora for entry in c.entries if entry.measurement),
        default=3,
    )
    parts = [INTRODUCTION.format(steps=steps)]
    if not any(corpus.kind == "gpu" for corpus in corpora):
        parts.append(NO_GPU)
    ordered = sorted(compared, key=lambda pair: (pair[0].kind, pair[0].device, pair[0].date))
    for corpus, rows in ordered:
        parts.append(section(corpus, rows))
        if steps_timed := step_times(corpus, predicted_step):
            parts.append(times_section(steps_timed))
    return "\n".join(parts)


ADDED = """\
## Added

Trainings by what one types after `tally plan`, measured figures and ours over them. One more is
added by

```sh no-run: it would add a row
python -m tests.truth.add --source URL --step-s 1.92 --memory-gib 76.8 -- \\
    llama-3.1-8b --gpus 8xH100-SXM --sequence 8192 --layout "dp 8, zero-3, mb 2x1"
```
"""
REAL_TRACES = Path(__file__).parents[2] / "docs" / "real_traces.md"
KERNELS = "## Kernels on an H100, by kind"


def kernels_section(page: Path = REAL_TRACES) -> str:
    """The kernels of a real H100, as `benchmarks.real_traces` found them in public traces, which
    are not kept here.
    """
    _, _, below = page.read_text().partition(KERNELS)
    table = below.partition("\n## ")[0].strip()
    told = f"From [real traces](real_traces.md), by `python -m benchmarks.real_traces`. {table}"
    return f"{KERNELS}\n\n{told}\n"


def added_section() -> str:
    """Rows that others added; "" while there are none."""
    if not (rows := added()):
        return ""
    return f"{ADDED}\n{table_of_added(rows)}\n"


def whole_page(of_corpora: str) -> str:
    return f"{opening()}\n{added_section()}{of_corpora}\n{kernels_section()}"


def section(corpus: Corpus, rows: Sequence[Row]) -> str:
    about = corpus.about
    versions = [f"torch {about['torch']}"]
    versions += [
        f"{label} {about[name]}"
        for name, label in (("cuda", "CUDA"), ("cudnn", "cuDNN"), ("driver", "driver"))
        if about[name] is not None
    ]
    stand_in = ", by a stand-in" if corpus.kind == "stand-in" else ""
    memory = format_bytes(about["total_memory_bytes"])
    allocator = ", ".join(f"`{name}={value}`" for name, value in about["allocator"].items())
    lines = [
        f"## {corpus.device}{stand_in}",
        "",
        textwrap.fill(
            f"{memory}. Measured on {corpus.date[:10]} with {', '.join(versions)}"
            + (f", {allocator}" if allocator else "")
            + (", models scaled down" if corpus.is_small else ""),
            WIDTH,
        )
        + f";\npredicted with torch {torch.__version__.partition('+')[0]}.",
        "",
        *([STAND_IN] if corpus.kind == "stand-in" else []),
        table(*summary(rows)),
        "### Below parity",
        "",
        *([f"- {name}" for name in below_parity(rows)] or ["None."]),
        *(
            f"- {entry.name}: not measured: {entry.error}"
            for entry in corpus.entries
            if entry.error
        ),
        "",
        "### Peaks",
        "",
        table(*peaks(rows)),
        "### Held at the end of each phase",
        "",
        "Ratios of allocated bytes: when model and optimizer are built, and in the last step.",
        "",
        table(*phases(rows)),
    ]
    return "\n".join(lines)


STEP_TIMES = """\
### Step times

Single: the median of steps that each begin and end with an idle device. In a row: steps that wait
for it only at the end, as training does. A ratio is predicted over the shorter of both (nvidia-smi,
which was asked beside the steps in a row, held up the host of some), beside the CPU that is assumed
and beside that of a virtual machine, which issues operators at 0.43 of its rate. Kernels: the sum
of what the profiler saw in other steps, unknown where it dropped some. Batches are ready on the
host; copying them to the device is part of a step.
"""


LEARNT_FROM = frozenset(
    """
    gpt2-tiny gpt2-fp32 gpt2-bf16-fused gpt2-fp16-dropout-clip gpt2-efficient mixture-bf16
    vit-b-bf16-math bert-base-fp16 resnet50-fp32 resnet50-channels-last
    gpt2-bf16-compiled gpt2-one-row-compiled
    """.split()
)
"""Cases whose kernels, or whose host, gave a constant of `timing/`; others had no part in any."""


def times_section(steps_timed: Sequence[StepTime]) -> str:
    unseen = [step for step in steps_timed if step.name not in LEARNT_FROM]
    said = [
        f"- {what}: {percent(median(far))} off in the median of {len(far)}, "
        f"{percent(max(far))} at worst"
        for what, far in (
            ("steps", far_off(step.ratio for step in steps_timed)),
            ("steps beside the slower CPU", far_off(step.virtual_ratio for step in steps_timed)),
            ("kernels", far_off(step.kernel_ratio for step in steps_timed)),
            ("kernels that gave no constant", far_off(step.kernel_ratio for step in unseen)),
        )
        if far
    ]
    lines = [*said, ""] if said else []
    return "\n".join([STEP_TIMES, *lines, table(*steps_table(steps_timed))])


def far_off(ratios: Iterable[float | None]) -> list[float]:
    return [error(ratio) for ratio in ratios if ratio is not None]


Grid = tuple[list[str], list[list[str]]]
"""The heads of the columns, and rows of cells."""


def summary(rows: Sequence[Row]) -> Grid:
    lines = []
    for what, ratio in (("peak allocated", allocated), ("peak reserved", reserved)):
        ratios = errors(rows, ratio)
        far = percent(ratios[0][0]) if ratios else "none"
        middle = percent(median(value for value, _ in ratios)) if ratios else "none"
        lines.append([what, str(len(ratios)), middle, far, ratios[0][1] if ratios else ""])
    right = sum(row.fitted is row.is_said_to_fit for row in rows)
    lines.append(["fits or not", str(len(rows)), f"{right} right", "", ""])
    return ["", "cases", "median error", "worst error", "worst case"], lines


def peaks(rows: Sequence[Row]) -> Grid:
    def lines() -> Iterator[list[str]]:
        for row in rows:
            measured, predicted = row.measured, row.predicted
            yield [
                row.name,
                size(measured.peak_allocated_bytes) if row.fitted else "out of memory",
                size(predicted.peak_allocated_bytes) if row.is_said_to_fit else "does not fit",
                times(row.allocated_ratio),
                size(measured.peak_reserved_bytes) if row.fitted else "",
                times(row.reserved_ratio),
            ]

    heads = ["case", "allocated", "predicted", "ratio", "reserved", "ratio"]
    return heads, list(lines())


def steps_table(steps_timed: Sequence[StepTime]) -> Grid:
    def line(step: StepTime) -> list[str]:
        clock_hz = None if step.times.gauge is None else step.times.gauge.sm_clock_hz
        kernel_s = step.kernel_s
        return [
            step.name,
            format_seconds(step.times.median_step_s),
            format_seconds(step.times.stretch_step_s),
            times(step.ratio),
            times(step.virtual_ratio),
            "unknown" if kernel_s is None else format_seconds(kernel_s),
            times(step.kernel_ratio),
            "unknown" if clock_hz is None else f"{clock_hz / 1e6:.0f} MHz",
        ]

    heads = ["case", "single", "in a row", "ratio", "slow CPU", "kernels", "ratio", "SM clock"]
    return heads, [line(step) for step in steps_timed]


PHASES = ("build", "forward", "backward", "optimizer", "zero_grad")


def phases(rows: Sequence[Row]) -> Grid:
    lines = [
        [row.name, *(times(row.phase_ratios.get(name)) for name in PHASES)]
        for row in rows
        if row.phase_ratios
    ]
    return ["case", *PHASES], lines


def size(number: int | None) -> str:
    return "unknown" if number is None else format_bytes(number)


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.4f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown whose columns stand below each other in the source too."""
    widths = [max(3, *map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        names, *numbers = zip(cells, widths, strict=True)
        padded = [f"{names[0]:<{names[1]}}", *(f"{cell:>{width}}" for cell, width in numbers)]
        return f"| {' | '.join(padded)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(heads), line(rule), *map(line, rows), ""])


def corpora(folder: Path = FOLDER) -> dict[str, Corpus]:
    """All that were committed, by the names of their files."""
    return {path.name: read_corpus(path) for path in sorted(folder.glob("*.json"))}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.compare", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("corpus", nargs="*", type=Path, help="default: all of tests/truth/corpus")
    given = parser.parse_args(arguments)
    try:
        chosen = [read_corpus(path) for path in given.corpus] or list(corpora().values())
        page = accuracy_markdown([(corpus, compare(corpus)) for corpus in chosen], predict_step)
        page = whole_page(page)
        if given.write is not None:
            given.write.write_text(page, encoding="utf-8")
        else:
            print(page, end="")
    except (OSError, ValueError) as problem:
        print(f"compare: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
