"""Kernels that one project measured on seven chips in one way, by chip and class.

Rows of `benchmarks/kernels` are drawn by chance from ai-dynamo/aiconfigurator @095f58a5,
aic-core/src/aiconfigurator_core/systems/data (Apache-2.0), which has millions: random values, in a
CUDA graph, by vLLM 0.14 to 0.24 and NCCL 2.27 to 2.29. In each file every second row is of half A,
which alone may give a constant. Each kernel comes after another one in a graph, and a row has the
gap between them. Layers in 8 and 4 bits begin with the cast of their input, attention with writing
keys and values into a cache, and so do predictions of them. Products in blocks of 8 bits are left
out: 60 to 250 us whatever the shape are the host's time.

    python -m benchmarks.published_kernels
"""

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from benchmarks.halves import ninth_decile
from benchmarks.measuring import parser, show, write
from benchmarks.published_times import call, seconds, tensor
from torchtally.chips.clusters import cluster
from torchtally.timing.constants import GRAPH_GAP_S, KERNEL_S
from torchtally.timing.network import RankGroup, collective
from torchtally.trace import Call, TensorSpec

FOLDER = Path(__file__).parent / "kernels"
SHORT_US = 10.0
"""Products below take a floor's time rather than their arithmetic's."""
EIGHT_BITS, FOUR_BITS = "float8_e4m3fn", "float4_e2m1fn_x2"

Line = dict[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One row beside its prediction."""

    half: str
    source: str
    chip: str
    kind: str
    """The class whose errors are told together."""
    label: str
    measured_us: float
    predicted_us: float

    @property
    def ratio(self) -> float:
        return self.predicted_us / self.measured_us

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)


def numbers(line: Line, *names: str) -> tuple[int, ...]:
    return tuple(int(line[name]) for name in names)


# Products -----------------------------------------------------------------------------------------


def linear(M: int, N: int, K: int, dtype: str) -> tuple[Call, ...]:
    """A layer without a bias: its product, after the cast of its input where it has one."""
    if dtype == "bfloat16":
        x = tensor(M, K, argument="input", dtype=dtype)
        weight = tensor(N, K, argument="weight", dtype=dtype)
        return (call("aten.linear", (x, weight), (tensor(M, N, dtype=dtype),)),)
    stored, packed = (FOUR_BITS, 2) if dtype == "nvfp4" else (EIGHT_BITS, 1)
    row = tensor(M, K, argument="self", dtype="bfloat16")
    cast = tensor(M, K // packed, argument="self", dtype=stored)
    weight = tensor(K // packed, N, argument="mat2", dtype=stored)
    result = tensor(M, N, dtype="bfloat16")
    return (
        call("aten._to_copy", (row,), (tensor(M, K // packed, dtype=stored),)),
        call("aten._scaled_mm", (cast, weight), (result,)),
    )


def product(line: Line) -> tuple[str, str, float]:
    M, N, K = numbers(line, "M", "N", "K")
    calls = linear(M, N, K, line["dtype"])
    between_s = GRAPH_GAP_S * len(calls)
    predicted_s = sum(seconds(each, line["chip"]) for each in calls) + between_s
    length = "below" if float(line["us"]) < SHORT_US else "above"
    kind = f"products {line['dtype']}, {length} 10 us"
    return kind, f"{M} x {N} x {K} by {line['kernel']}", predicted_s


# Attention ----------------------------------------------------------------------------------------

OPERATORS = {
    "FlashAttention 2": "aten._flash_attention_forward",
    "FlashAttention 3": "flash_attn_3.forward",
    "FlashAttention 4": "flash_attn_3.forward",
    "TensorRT-LLM": "aten._scaled_dot_product_cudnn_attention",
}
"""What stands for each: of Blackwell's own kernels there is one rate."""


def attention(line: Line) -> tuple[str, str, float]:
    B, S, H, H_kv, D, window = numbers(
        line, "batch", "sequence", "heads", "kv_heads", "head_dim", "window"
    )
    name = OPERATORS[line["kernel"]]
    is_heads_first = "cudnn" in name

    def operand(argument: str, heads: int) -> TensorSpec:
        shape = (B, heads, S, D) if is_heads_first else (B, S, heads, D)
        return tensor(*shape, argument=argument, dtype="bfloat16")

    inputs = (operand("query", H), operand("key", H_kv), operand("value", H_kv))
    windows = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
    one = call(name, inputs, (operand("", H),), is_causal=True, **windows)
    kind = "attention, windows" if window else "attention"
    label = f"{B} x {S} x {H}/{H_kv} x {D} by {line['kernel']}"
    return kind, label, seconds(one, line["chip"]) + around_s(line, B * S * H_kv * D)


def around_s(line: Line, elements: int) -> float:
    """Seconds of kernels beside attention's own in vLLM: keys and values are written into a cache,
    and FlashAttention 3 orders the sequences of a batch (hopper/flash_prepare_scheduler.cu).
    """
    kept = tensor(2, elements, argument="self", dtype="bfloat16")
    write_s = seconds(call("aten.clone", (kept,), (kept,)), line["chip"]) + GRAPH_GAP_S
    order_s = KERNEL_S + GRAPH_GAP_S if line["kernel"] == "FlashAttention 3" else 0.0
    return write_s + order_s + GRAPH_GAP_S


# Collectives --------------------------------------------------------------------------------------

NODES = {"GB200": 4, "GB300": 4, "RTX-PRO-6000": 8}
"""GPUs of one node, where it is not the chip's own."""


def transfer(line: Line) -> tuple[str, str, float]:
    gpus, payload_bytes = numbers(line, "gpus", "payload_bytes")
    nodes = f"1x{NODES.get(line['chip'], 8)}x{line['chip']}"
    found = collective(line["kind"], payload_bytes, RankGroup(gpus), cluster(nodes))
    return f"NCCL {line['kind']}", f"{gpus} GPUs, {payload_bytes} bytes", found.seconds


PREDICTIONS: dict[str, Callable[[Line], tuple[str, str, float]]] = {
    "products": product,
    "attention": attention,
    "collectives": transfer,
}


def of_file(name: str) -> Iterator[Measured]:
    predict = PREDICTIONS[name]
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            kind, label, predicted_s = predict(line)
            yield Measured(
                line["half"], line["source"], line["chip"], kind, label,
                float(line["us"]), 1e6 * predicted_s,
            )  # fmt: skip


@cache
def rows() -> tuple[Measured, ...]:
    return tuple(row for name in PREDICTIONS for row in of_file(name))


COLUMNS = ("class", "chip", "rows", "ratio", "error", "p90", "half B")


def table() -> list[tuple[str, ...]]:
    """A line for each class and chip."""
    groups = dict[tuple[str, str], list[Measured]]()
    for row in rows():
        groups.setdefault((row.kind, row.chip), []).append(row)
    return [(*key, *figures(groups[key])) for key in sorted(groups)]


def figures(measured: list[Measured]) -> tuple[str, ...]:
    kept = [row.error for row in measured if row.half == "B"]
    return (
        str(len(measured)),
        f"{median(row.ratio for row in measured):.2f}",
        f"{median(row.error for row in measured):.1%}",
        f"{ninth_decile(row.error for row in measured):.0%}",
        f"{median(kept):.1%}" if kept else "-",
    )


def summary() -> list[tuple[str, ...]]:
    """A line for each class, over all chips, as docs/accuracy.md has it."""
    groups = dict[str, list[Measured]]()
    for row in rows():
        groups.setdefault(row.kind, []).append(row)
    return [(kind, *summary_cells(groups[kind])) for kind in sorted(groups)]


def summary_cells(measured: list[Measured]) -> tuple[str, ...]:
    """Chips, rows, the median error of each half, and the chip that is worst in half B."""
    halves = [[row for row in measured if row.half == half] for half in "AB"]
    by_chip = {
        chip: median(row.error for row in halves[1] if row.chip == chip)
        for chip in sorted({row.chip for row in halves[1]})
    }
    worst = max(by_chip, key=by_chip.__getitem__)
    return (
        str(len(by_chip)),
        str(len(measured)),
        *(f"{median(row.error for row in half):.1%}" for half in halves),
        f"{ninth_decile(row.error for row in halves[1]):.0%}",
        f"{worst}, {by_chip[worst]:.1%}",
    )


def document_table() -> str:
    """The table as docs/kernels_by_chip.md has it."""
    lines = [COLUMNS, (":--", ":--", *("--:",) * (len(COLUMNS) - 2)), *table()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    show("predicted over measured", COLUMNS, table())
    write(args.json, {"rows": len(rows()), "table": table()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
