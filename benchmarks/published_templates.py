"""Templates of products, as the model times them, against inductor's own timings of its choices.

With `mode="max-autotune"` inductor times each product by the library and by Triton templates, and
prints the ten fastest. `templates/choices.csv` has such tables that others published: half A gave
the model its constants, half B had no part. A time there has some 9 us of the launch in it, so that
a template is compared by how many times the library's it takes, less that.
`templates/winners.csv` says who won on an H100.

    python -m benchmarks.published_templates

Where the tables stand:

- sglang: sgl-project/sgl-project.github.io, advanced_features/speculative_decoding, as of
  2026-02-11; an H100 by its documents and its bandwidth
- sglang-diffusion: sgl-project/sglang pull request 19776; of Hopper's generation by its rate
- depth-anything: "Inference Speedup Benchmark - Depth Anything v3", a notebook of 2026-03-24 on a
  Tesla V100-DGXS-32GB, PyTorch 2.5.1
- ithome: guan404ming/gmc-ithome, day 23, an L40S, PyTorch 2.8
- pytorch-159982: pytorch/pytorch pull request 159982; of Blackwell's generation by its rate
- winners.csv: pytorch/helion pull request 3006, its report of an H100
"""

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from benchmarks.measuring import parser, show, write
from torchtally.chips import chip
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.products import Product, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.timing.roofline.templates import template_s
from torchtally.trace import Tile

FOLDER = Path(__file__).parent / "templates"
LAUNCH_S = {"H100-SXM": 9e-6, "V100-SXM-32GB": 5e-6, "L40S": 9e-6, "B200": 9e-6}
"""In a time of inductor's, beside the kernel: what the library's small products there take more
than any kernel, 16 to 20 us for (64, 4096) @ (4096, 4096)."""
ITEMSIZE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
TILES = (
    (32, 32, 16, 1, 2), (32, 32, 128, 2, 4), (32, 64, 32, 5, 8), (64, 32, 32, 5, 8),
    (64, 32, 128, 5, 4), (64, 64, 16, 2, 4), (64, 64, 32, 2, 4), (64, 64, 64, 3, 8),
    (64, 64, 128, 5, 4), (64, 128, 32, 3, 4), (64, 128, 32, 4, 8), (64, 128, 64, 3, 4),
    (64, 128, 128, 4, 4), (128, 64, 32, 3, 4), (128, 64, 32, 4, 8), (128, 128, 32, 2, 8),
    (128, 128, 32, 3, 4), (128, 128, 64, 3, 4), (128, 128, 64, 5, 8),
)  # fmt: skip
"""Inductor's for products of half precision (torch/_inductor/template_heuristics/triton.py)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One template beside the library."""

    half: str
    source: str
    chip: str
    product: Product
    tile: Tile
    published: float
    """Times the library's."""

    @property
    def predicted(self) -> float:
        return times(self.product, self.tile, self.chip)

    @property
    def ratio(self) -> float:
        return self.predicted / self.published


def memory_s(product: Product, chip_name: str) -> float:
    elements = product.M * product.K + product.K * product.N + product.M * product.N
    moved_bytes = product.batch * elements * product.itemsize_bytes
    return moved_bytes / bandwidth_bytes_per_s(chip(chip_name))


def times(product: Product, tile: Tile, chip_name: str) -> float:
    """How many times the library's a template takes."""
    moved_s = memory_s(product, chip_name)
    library_s, launches = product_s(product, chip(chip_name), moved_s)
    template = max(template_s(product, tile, chip(chip_name)), moved_s) + KERNEL_S
    return template / (max(library_s, moved_s) + launches * KERNEL_S)


@cache
def choices() -> tuple[Row, ...]:
    with (FOLDER / "choices.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    libraries = {key(line): float(line["ms"]) for line in lines if not line["rows"]}
    return tuple(row_of(line, libraries[key(line)]) for line in lines if line["rows"])


def key(line: dict[str, str]) -> tuple[str, ...]:
    return tuple(line[name] for name in ("source", "M", "N", "K"))


def row_of(line: dict[str, str], library_ms: float) -> Row:
    M, N, K = (int(line[name]) for name in "MNK")
    product = Product(1, M, N, K, line["dtype"], ITEMSIZE_BYTES[line["dtype"]])
    tile = Tile(*(int(line[name]) for name in ("rows", "columns", "depth", "stages", "warps")))
    launch_ms = 1e3 * LAUNCH_S[line["chip"]]
    published = (float(line["ms"]) - launch_ms) / (library_ms - launch_ms)
    return Row(line["half"], line["source"], line["chip"], product, tile, published)


@dataclass(frozen=True, slots=True)
class Winner:
    product: Product
    is_template: bool

    @property
    def name(self) -> str:
        return "template" if self.is_template else "library"

    @property
    def text(self) -> str:
        product = self.product
        M, N, K = product.M, product.N, product.K
        return f"{product.batch} x ({M}, {K}) @ ({K}, {N})"

    @property
    def best(self) -> float:
        """How many times the library's the fastest template takes."""
        return min(times(self.product, Tile(*tile), "H100-SXM") for tile in TILES)


@cache
def winners() -> tuple[Winner, ...]:
    with (FOLDER / "winners.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(map(winner_of, csv.DictReader(stream)))


def winner_of(line: dict[str, str]) -> Winner:
    batch, M, N, K = (int(line[name]) for name in ("batch", "M", "N", "K"))
    rows_bytes = 2 * K | 2 * N
    aligned = rows_bytes & -rows_bytes
    product = Product(batch, M, N, K, "bfloat16", 2, row_alignment_bytes=min(16, aligned))
    return Winner(product, line["winner"] == "template")


def error(rows: Sequence[Row]) -> float:
    """The mean of what each is off."""
    return sum(abs(row.ratio - 1) for row in rows) / len(rows)


def rightly_won() -> list[Winner]:
    return [each for each in winners() if (each.best < 1) == each.is_template]


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in choices():
        groups.setdefault((row.source, row.chip, row.half), []).append(row)
    show(
        "times the library's, predicted over published",
        ("", "chip", "half", "n", "median", "mean error"),
        [
            (source, name, half, f"{len(rows)}", f"{median(row.ratio for row in rows):.2f}",
             f"{error(rows):.1%}")
            for (source, name, half), rows in groups.items()
        ],
    )  # fmt: skip
    show(
        f"who won on an H100: right for {len(rightly_won())} of {len(winners())}",
        ("", "best template", "won"),
        [(each.text, f"{each.best:.2f}", each.name) for each in winners()],
    )
    table = [
        {"source": source, "chip": name, "half": half, "rows": len(rows), "error": error(rows)}
        for (source, name, half), rows in groups.items()
    ]
    write(args.json, {"tables": table, "won": len(rightly_won()), "products": len(winners())})
    return 0


if __name__ == "__main__":
    sys.exit(main())
