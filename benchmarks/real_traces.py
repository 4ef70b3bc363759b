"""`tally explain` on real traces that nobody here made, and what it costs on a large one.

The traces are public: fetched from GitHub into a folder, never kept in this repository. Of each:
the kernel time of the file beside that of its account, how much of it was counted and priced, and
what the roofline predicts over what was measured. H100 traces are taken apart by kind of operator;
samples of some predict the others with and without them.

    python -m benchmarks.real_traces                        fetches what is missing
    python -m benchmarks.real_traces --folder ~/traces      where they are kept (default: a cache)
    python -m benchmarks.real_traces --write docs/real_traces.md
    python -m benchmarks.real_traces --large                a trace of one gigabyte: time and memory
"""

import argparse
import gzip
import json
import resource
import statistics
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

from benchmarks.published_models import cublas_12
from torchtally.chips import chip
from torchtally.errors import TallyError
from torchtally.ledger import Ledger, account
from torchtally.profiles import read_kineto
from torchtally.runs.explaining import explain
from torchtally.timing.calibration.imported import calibration_from
from torchtally.timing.hosts import ESTIMATED_ISSUE
from torchtally.timing.roofline import Roofline
from torchtally.timing.targets import known_roofline
from torchtally.trace import Trace

RAW = "https://raw.githubusercontent.com/{repository}/{revision}/{path}"
CACHE = Path.home() / ".cache" / "torchtally" / "traces"
GIGABYTE = 1_000_000_000


@dataclass(frozen=True)
class Source:
    """A public trace."""

    label: str
    repository: str
    path: str
    gpu: str | None = None
    """The chip, where the driver's name of it is not in our table."""
    has_shapes: bool = True

    @property
    def file(self) -> str:
        return f"{self.repository.partition('/')[2]}-{self.path.replace('/', '-')}"


TRACELENS = "AMD-AGI/TraceLens"
HTA = "facebookresearch/HolisticTraceAnalysis"
H100 = "tests/traces/h100/"
SOURCES = (
    Source("ViT-base, H100", TRACELENS, f"{H100}Falconsai_nsfw_image_detection__1016002.json.gz"),
    Source("BERT-small, H100", TRACELENS, f"{H100}gaunernst_bert-small-uncased__1016001.json.gz"),
    Source("OWLv2-large, H100", TRACELENS,
           f"{H100}google_owlv2-large-patch14-ensemble__1016001.json.gz"),
    Source("Qwen1.5-0.5B, H100", TRACELENS, f"{H100}Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"),
    Source("TimeSformer, H100", TRACELENS,
           f"{H100}facebook_timesformer-base-finetuned-k400__1016002.json.gz"),
    Source("Qwen1.5-0.5B, MI300X", TRACELENS,
           "tests/traces/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "MI300X"),
    Source("TimeSformer, MI300X", TRACELENS,
           "tests/traces/mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz"),
    Source("OWLv2-large, MI300X", TRACELENS,
           "tests/traces/mi300/google_owlv2-large-patch14-ensemble__1016001.json.gz"),
    Source("ViT-base, MI300X", TRACELENS,
           "tests/traces/mi300/Falconsai_nsfw_image_detection__1016002.json.gz"),
    Source("BERT-small, MI300X", TRACELENS,
           "tests/traces/mi300/gaunernst_bert-small-uncased__1016001.json.gz"),
    Source("ResNet training, 8 x MI300X", TRACELENS,
           "tests/traces/mi300/resnet_act_checkpoint.json.gz"),
    Source("norms, MI300X", TRACELENS,
           "tests/traces/perf_model/normalization/normalization_layer_test.json.gz"),
    Source("vLLM, 8 x B200", TRACELENS, "tests/traces/b200/eager_trace.json.gz"),
    Source("diffusion, MI300X", TRACELENS,
           "tests/traces/inference/xdit_flux.1_aiter_sage/profile_trace_rank_0.json.gz", "MI300X"),
    Source("recommendation, 8 x A100", HTA, "tests/data/trace_diff/control/control.json.gz",
           "A100-SXM-40GB"),
    Source("recommendation, 2 x V100", HTA, "tests/data/trace_diff/test/test.json.gz"),
    Source("training, 16 x A100", HTA,
           "tests/data/negative_queue_length_values_check/rank0.json.gz"),
    Source("ResNet, 2 x A100", HTA, "tests/data/nccl_parser_config/nccl_data.json.gz",
           "A100-SXM-40GB", has_shapes=False),
    Source("training, 2 x V100", HTA, "tests/data/df_index_resolver/df_index_resolver.json.gz",
           has_shapes=False),
)  # fmt: skip


def fetched(source: Source, folder: Path) -> Path:
    """The file, from the folder or from GitHub."""
    path = folder / source.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        url = RAW.format(repository=source.repository, revision="HEAD", path=source.path)
        with urllib.request.urlopen(url, timeout=120) as answer:
            path.write_bytes(answer.read())
    return path


@dataclass(frozen=True)
class Figures:
    """What came of one trace."""

    label: str
    file_us: float
    account_us: float
    lost_us: float
    counted: float
    priced: float
    ratio: float
    """Predicted over measured, of what is priced."""
    error: float
    """Weighted by time."""

    def row(self) -> str:
        return (
            f"| {self.label} | {self.file_us:,.1f} | {self.account_us:,.1f} | {self.lost_us:,.1f} |"
            f" {self.counted:.1%} | {self.priced:.1%} | {self.ratio:.2f} | {self.error:.0%} |"
        )


def figures(source: Source, path: Path, trace: Trace) -> Figures:
    ledger = account(trace, roofline=known_roofline(trace.chip), step="all")
    ledger.check()
    measured = trace.measured
    assert measured is not None
    lost_us = fsum(part.duration_ns for part in measured.lost) / 1e3
    whole_s = ledger.total.kernel_s or 1.0
    counted_s = fsum(
        ledger.slot(entry).kernel_s
        for entry in ledger.entries
        if entry.kind.value != "uncounted" and not ledger.costs[entry.op.call].failure
    )
    pairs = timed(ledger)
    measured_s, predicted_s = (fsum(column) for column in zip(*pairs, strict=True))
    return Figures(
        source.label,
        fsum(activity.duration_us for activity in read_kineto(str(path)).activities),
        measured.device_ns / 1e3,
        lost_us,
        counted_s / whole_s,
        measured_s / whole_s,
        predicted_s / measured_s if measured_s else 0.0,
        fsum(abs(real - model) for real, model in pairs) / measured_s if measured_s else 0.0,
    )


def timed(ledger: Ledger) -> list[tuple[float, float]]:
    """(measured, predicted) of every operator that has both."""
    return [
        (ledger.slot(entry).kernel_s, ledger.times.kernels_s[entry.number])
        for entry in ledger.entries
        if ledger.times.kernels_s[entry.number] > 0 and ledger.slot(entry).kernel_s > 0
    ] or [(0.0, 0.0)]


def by_kind(ledgers: Iterable[Ledger]) -> dict[str, list[tuple[float, float]]]:
    """Distinct calls by kind: (measured, predicted), each as often as it ran."""
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for ledger in ledgers:
        for entry in ledger.entries:
            predicted_s = ledger.times.kernels_s[entry.number]
            if predicted_s > 0 and ledger.slot(entry).kernel_s > 0:
                kinds[str(entry.kind)].append((ledger.slot(entry).kernel_s, predicted_s))
    return kinds


def kind_row(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    measured_s, predicted_s = (fsum(column) for column in zip(*pairs, strict=True))
    ratios = sorted(predicted / real for real, predicted in pairs)
    errors = [abs(ratio - 1) for ratio in ratios]
    return (
        f"| {name} | {len(pairs)} | {measured_s * 1e3:.2f} | {statistics.median(ratios):.2f} |"
        f" {statistics.median(errors):.0%} | {predicted_s / measured_s:.2f} |"
    )


def error_of(trace: Trace, roofline: Roofline) -> tuple[float, float]:
    """(sum of predicted over measured, error weighted by time)."""
    pairs = timed(account(trace, roofline=roofline, step="all"))
    measured_s = fsum(real for real, _ in pairs)
    return (
        fsum(predicted for _, predicted in pairs) / measured_s,
        fsum(abs(real - predicted) for real, predicted in pairs) / measured_s,
    )


LEARNT = ("ViT-base", "BERT-small", "OWLv2-large")
"""Whose samples are tried, on each chip; on the MI300X they are shipped."""


def learning(traces: dict[str, Trace], name: str, short: str) -> list[str]:
    """What samples of some traces of a chip do to the prediction of its others."""
    own = {label: trace for label, trace in traces.items() if label.endswith(short)}
    learnt = [label for label in own if label.partition(",")[0] in LEARNT]
    target = chip(name)
    calibration = calibration_from(
        [own[label] for label in learnt], target, date="", issue=ESTIMATED_ISSUE, before=None
    )
    lines = []
    for label, trace in own.items():
        if label not in learnt:
            plain = error_of(trace, Roofline(target))
            better = error_of(trace, Roofline(target, calibration))
            lines.append(
                f"| {label} | {plain[0]:.2f}, {plain[1]:.1%} | {better[0]:.2f}, {better[1]:.1%} |"
            )
    return lines


@cublas_12()
def document(folder: Path) -> str:
    rows, h100, traces = [], [], {}
    for source in SOURCES:
        path = fetched(source, folder)
        trace = explain(str(path), source.gpu)
        rows.append(figures(source, path, trace).row())
        traces[source.label] = trace
        if source.label.endswith(", H100"):
            h100.append(account(trace, roofline=known_roofline(trace.chip), step="all"))
        print(rows[-1], file=sys.stderr, flush=True)
    kinds = by_kind(h100)
    kind_rows = [
        kind_row(name, pairs)
        for name, pairs in sorted(kinds.items(), key=lambda item: -fsum(m for m, _ in item[1]))
    ]
    return "\n".join(
        [
            HEAD,
            "| trace | kernels in the file, us | in the account, us | of it left out | counted "
            "| priced | sum of roofline over measured | error |",
            "| :-- | --: | --: | --: | --: | --: | --: | --: |",
            *rows,
            BY_KIND,
            "| kind | operators | measured, ms | median ratio | median error | sum |",
            "| :-- | --: | --: | --: | --: | --: |",
            *kind_rows,
            LEARNING,
            "| predicted | data sheet: sum, error | with samples: sum, error |",
            "| :-- | --: | --: |",
            *learning(traces, "H100-SXM", ", H100"),
            *learning(traces, "MI300X", "MI300X"),
            "",
        ]
    )


HEAD = """# Real traces

Made by `python -m benchmarks.real_traces --write docs/real_traces.md`, from public traces of
TraceLens' and Holistic Trace Analysis' tests (both MIT), which it fetches; none is kept here.
*Left out* are kernels whose launch the file does not have. *Counted*: of the kernels' time, that
of operators whose FLOPs and bytes have a rule; the rest are listed by name in the account
(operators of fbgemm and vLLM, NCCL before it told its payload, calls without shapes). *Priced*:
of which the roofline has a time. The error weighs each operator by its time.
"""
BY_KIND = """
## Kernels on an H100, by kind

All five H100 traces (bfloat16 inference, PyTorch 2.6, CUDA 12.4), every operator as often as it
ran, with the tiles of that cuBLAS. Constants of the roofline were chosen by ViT, BERT and OWLv2,
that of long softmax rows by TimeSformer, too; Qwen had no part in any.
"""
LEARNING = """
## What samples of some traces do to the others

`tally bench --import` makes a calibration of a trace. Calls that are in it are predicted as they
were measured; here are traces that are not in it, each chip's predicted with samples of its ViT,
BERT and OWLv2. On the H100, whose rules were chosen by such kernels, samples of other models'
shapes help nobody, and none are shipped. On the MI300X they help four traces of five, and are
shipped (`chips/calibrations/amd-instinct-mi300x.json`); the table above is predicted with them.
"""


def large(folder: Path, most_bytes: int) -> None:
    """Time and memory of a trace of a gigabyte: OWLv2's again and again."""
    source = next(source for source in SOURCES if source.label.startswith("OWLv2"))
    events = json.loads(gzip.decompress(fetched(source, folder).read_bytes()))
    path = folder / "large.json"
    write_repeated(events, path, most_bytes)
    before_s = time.process_time()
    ledger = account(explain(str(path)), roofline=known_roofline("H100-SXM"), step="all")
    used_s = time.process_time() - before_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{path.stat().st_size / 1e9:.2f} GB, {len(ledger.entries)} operators: {used_s:.1f} CPU s, "
        f"{peak_mib} MiB at most (limits: 60 s, 1024 MiB)"
    )
    path.unlink()


def write_repeated(document: dict[str, Any], path: Path, most_bytes: int) -> None:
    events = document["traceEvents"]
    kept = {name: document[name] for name in ("schemaVersion", "deviceProperties")}
    times = [event["ts"] for event in events if event.get("ph") == "X"]
    span_us = max(times) - min(times) + 1e6
    with path.open("w") as file:
        file.write(json.dumps(kept)[:-1] + ', "traceEvents": [')
        number, comma = 0, ""
        while file.tell() < most_bytes:
            for event in events:
                again = {**event, "ts": round(event.get("ts", 0) + number * span_us, 3)}
                args = event.get("args")
                if args and "correlation" in args:
                    link = args["correlation"] + number * 10_000_000
                    again["args"] = {**args, "correlation": link}
                file.write(f"{comma}\n{json.dumps(again, indent=1)}")
                comma = ","
            number += 1
        file.write("]}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_traces",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=CACHE, help="where the traces are")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables to a document")
    parser.add_argument("--large", action="store_true", help="a trace of one gigabyte instead")
    options = parser.parse_args()
    try:
        if options.large:
            large(options.folder, GIGABYTE)
            return 0
        text = document(options.folder)
    except (TallyError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.write is None:
        print(text)
    else:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
