"""What `tally bench` measured of one device, beside what its data sheet promises."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchtally.calibration import Calibration
from torchtally.calibration.rates import (
    AttentionRate,
    CopyRate,
    ProductRate,
    attention_rates,
    copy_rates,
    product_rates,
)
from torchtally.errors import UnknownChipError, UsageError
from torchtally.hardware import Chip, chip
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot, Scale, span
from torchtally.views.table import Cell, Column, Table, Unit

DTYPES = ("float32", "tf32", "bfloat16", "float16")
"""In the order of columns and colours; any other comes after these."""
SYMBOLS = {"float32": "f", "tf32": "t", "bfloat16": "b", "float16": "h"}
"""In a plot. "h" is half precision."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that was measured, finished."""

    title: str
    tables: tuple[tuple[str, Table], ...]
    """By name, as a document's keys."""
    plot: Plot


@dataclass(frozen=True, slots=True)
class Limits:
    """What products of each dtype could reach at best, and who says so."""

    chip: Chip | None
    """Of the hardware table; None for what is not in it, as all CPUs."""
    estimated_float32: float | None = None
    """In FLOP/s, of a CPU."""

    def flop_per_s(self, dtype: str) -> float | None:
        if self.chip is None:
            return self.estimated_float32 if dtype == "float32" else None
        try:
            return self.chip.peak_flop_per_s(dtype)
        except UsageError:
            return None

    @property
    def basis(self) -> Basis:
        return Basis.PROMISED if self.chip is not None else Basis.ESTIMATED

    def share(self, flop_per_s: float | None, dtype: str) -> float | None:
        """MFU: the part of the limit that was reached; None where nobody knows the limit."""
        limit = self.flop_per_s(dtype)
        return None if limit is None or flop_per_s is None else flop_per_s / limit


def bench_view(calibration: Calibration, estimated_float32: float | None = None) -> Bench:
    """Everything in a calibration. The estimate is for a CPU, of which nobody promises anything."""
    limits = Limits(known_chip(calibration), estimated_float32)
    products = tuple(product_rates(calibration))
    copies = tuple(copy_rates(calibration))
    tables = {
        "products": product_table(calibration, products, limits),
        "bandwidth": bandwidth_table(calibration, copies, limits.chip),
        "same_shapes": same_shapes_table(products, limits),
        "attention": attention_table(tuple(attention_rates(calibration)), limits),
        "copies": copy_table(copies),
        "issue": issue_table(calibration),
        "conditions": conditions_table(calibration),
    }
    return Bench(
        title=f"{calibration.device}, measured {calibration.date}",
        tables=tuple((name, table) for name, table in tables.items() if table.rows),
        plot=product_plot(calibration.device, products, limits),
    )


def known_chip(calibration: Calibration) -> Chip | None:
    """The chip of the hardware table that was measured; None where it is not in it."""
    if calibration.kind != "cuda":
        return None
    try:
        return chip(calibration.device)
    except UnknownChipError:
        return None


def ordered(dtypes: Iterable[str]) -> list[str]:
    """Those of DTYPES first."""
    found = dict.fromkeys(dtypes)
    return [*(it for it in DTYPES if it in found), *(it for it in found if it not in DTYPES)]


def sides(it: ProductRate) -> str:
    """ "8192 x 4096 x 4096": M, N and K; a batch stands before them."""
    batch, *rest = it.shape
    return " x ".join(map(str, rest if batch == 1 else it.shape))


# Tables ----------------------------------------------------------------------------------------


def product_table(
    calibration: Calibration, products: Sequence[ProductRate], limits: Limits
) -> Table:
    """The best product of each dtype, beside the promise."""
    columns = (
        Column("dtype", "dtype", Unit.NAME),
        Column("achieved_flop_per_s", "achieved", Unit.FLOP_PER_S),
        Column("limit_flop_per_s", str(limits.basis), Unit.FLOP_PER_S),
        Column("mfu", "MFU", Unit.FRACTION),
        Column("shape", "best shape, M x N x K", Unit.TEXT),
    )
    best = {it.dtype: it for it in sorted(products, key=lambda it: it.flop_per_s)}
    rows: list[tuple[Cell, ...]] = []
    for dtype in ordered([*calibration.peak_flop_per_s, *best]):
        found = best.get(dtype)
        rate = found.flop_per_s if found else calibration.peak_flop_per_s[dtype]
        shape = f"{sides(found)} ({found.layout})" if found else ""
        limit = limits.flop_per_s(dtype)
        rows.append((dtype, rate, limit, limits.share(rate, dtype), shape))
    has_estimate = limits.chip is None and limits.estimated_float32 is not None
    note = "MFU is what was achieved of the promised dense peak."
    if limits.chip is None:
        note = "Nobody promises a peak of this device" + (
            ": cores x clock x FLOPs per cycle of its widest instructions, estimated."
            if has_estimate
            else "."
        )
    return _table("Products: achieved against promised", columns, rows, note)


def bandwidth_table(
    calibration: Calibration, copies: Sequence[CopyRate], known: Chip | None
) -> Table:
    """Memory, and the ways between host and device, each at its best."""
    columns = (
        Column("name", "bytes", Unit.NAME),
        Column("achieved_bytes_per_s", "achieved", Unit.BYTE_PER_S),
        Column("promised_bytes_per_s", "promised", Unit.BYTE_PER_S),
        Column("share", "share", Unit.FRACTION),
    )
    link = known.host_link.bytes_per_s_per_direction if known and known.host_link else None
    found = [
        ("memory, read and written", calibration.bandwidth_bytes_per_s,
         known.memory_bandwidth_bytes_per_s if known else None)
    ]  # fmt: skip
    for name, is_to_device, is_pinned in WAYS:
        rates = [it.bytes_per_s for it in copies
                 if (it.is_to_device, it.is_pinned) == (is_to_device, is_pinned)]  # fmt: skip
        if rates:
            found.append((name, max(rates), link))
    rows = [(name, rate, limit, rate / limit if limit else None) for name, rate, limit in found]
    return _table("Bandwidth: achieved against promised", columns, rows)


WAYS = (
    ("host to device, pinned", True, True),
    ("host to device, pageable", True, False),
    ("device to host, pinned", False, True),
    ("device to host, pageable", False, False),
)
"""(name, to the device, from or to page-locked memory)"""


def same_shapes_table(products: Sequence[ProductRate], limits: Limits) -> Table:
    """The same products in each dtype side by side: one for each amount of work, largest first."""
    dtypes = ordered(it.dtype for it in products)
    by_place: dict[tuple[tuple[int, ...], str], dict[str, ProductRate]] = {}
    for it in products:
        by_place.setdefault((it.shape, it.layout), {})[it.dtype] = it
    shared = [it for it in by_place.values() if len(it) == len(dtypes) > 1]
    chosen: dict[int, dict[str, ProductRate]] = {}
    for found in sorted(shared, key=lambda it: _plainness(it[dtypes[0]])):
        chosen.setdefault(found[dtypes[0]].flops, found)
    columns = (
        Column("shape", "M x N x K", Unit.NAME),
        *(Column(f"{it}_flop_per_s", it, Unit.FLOP_PER_S) for it in dtypes),
        *(Column(f"{it}_mfu", f"{_short(it)} MFU", Unit.FRACTION, 1) for it in dtypes),
        *(Column(f"{it}_times", f"{_short(it)} is x times", Unit.COUNT, 2) for it in dtypes[1:]),
    )
    rows = [
        (
            f"{sides(found[dtypes[0]])} {found[dtypes[0]].layout}",
            *(found[it].flop_per_s for it in dtypes),
            *(limits.share(found[it].flop_per_s, it) for it in dtypes),
            *(round(found[it].flop_per_s / found[dtypes[0]].flop_per_s, 2) for it in dtypes[1:]),
        )
        for _, found in sorted(chosen.items(), reverse=True)
    ]
    return _table(" beside ".join(dtypes) + ", the same products", columns, rows)


def _plainness(it: ProductRate) -> tuple[float, int, str]:
    """A cube comes first, then what is no batch, then a layer's forward pass ("NT")."""
    return (it.slenderness, it.shape[0], "" if it.layout == "NT" else it.layout)


SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _short(dtype: str) -> str:
    return SHORT.get(dtype, dtype)


def attention_table(rates: Sequence[AttentionRate], limits: Limits) -> Table:
    """Each shape and dtype: forward, backward, in full and causal."""
    columns = (
        Column("shape", "B*H x S x T x D", Unit.NAME),
        Column("dtype", "dtype", Unit.WORD),
        *(Column(name, title, Unit.FLOP_PER_S) for name, title, *_ in PASSES),
        Column("mfu", "best MFU", Unit.FRACTION, 1),
    )
    found: dict[tuple[tuple[int, ...], str], dict[tuple[bool, bool], float]] = {}
    for it in rates:
        row = found.setdefault((it.shape, it.dtype), {})
        key = (it.is_backward, it.is_causal)
        row[key] = max(row.get(key, 0.0), it.flop_per_s)
    work = {(it.shape, it.dtype): it.flops for it in rates}
    rows = [
        (
            " x ".join(map(str, shape)),
            dtype,
            *(passes.get((is_backward, is_causal)) for *_, is_backward, is_causal in PASSES),
            limits.share(
                max((rate for (_, causal), rate in passes.items() if not causal), default=None),
                dtype,
            ),
        )
        for (shape, dtype), passes in sorted(
            found.items(), key=lambda it: (DTYPES.index(it[0][1]) if it[0][1] in DTYPES else 9,
                                           -work[it[0]])
        )
    ]  # fmt: skip
    note = (
        "Batch with heads, query length, key length, head dim. Causal attention is counted in "
        "full: half of it need not be computed, and MFU is of the others."
    )
    return _table("Attention", columns, rows, note)


PASSES = (
    ("forward_flop_per_s", "forward", False, False),
    ("backward_flop_per_s", "backward", True, False),
    ("causal_forward_flop_per_s", "causal fwd", False, True),
    ("causal_backward_flop_per_s", "causal bwd", True, True),
)
"""(name, title, backward, causal)"""


def copy_table(copies: Sequence[CopyRate]) -> Table:
    """By size, the largest first."""
    columns = (
        Column("bytes", "size", Unit.BYTES),
        *(Column(name.replace(", ", "_").replace(" ", "_") + "_bytes_per_s", title, Unit.BYTE_PER_S)
          for (name, *_), title in zip(WAYS, WAY_TITLES, strict=True)),
    )  # fmt: skip
    rates = {(it.bytes, it.is_to_device, it.is_pinned): it.bytes_per_s for it in copies}
    rows = [
        (size, *(rates.get((size, *way)) for _, *way in WAYS))
        for size in sorted({it.bytes for it in copies}, reverse=True)
    ]
    return _table("Copies between host and device", columns, rows)


WAY_TITLES = ("in, pinned", "in, pageable", "out, pinned", "out, pageable")


def issue_table(calibration: Calibration) -> Table:
    """What the host takes per operator of a plain training loop."""
    issue = calibration.issue
    columns = (
        Column("name", "operator", Unit.NAME),
        Column("seconds", "each", Unit.SECONDS),
        Column("per_s", "per second", Unit.COUNT),
    )
    found = (
        ("forward", issue.forward_s),
        ("backward", issue.backward_s),
        ("optimizer", issue.optimizer_s),
        ("view", issue.view_s),
        ("each further kernel", issue.launch_s),
    )
    rows = [(name, seconds, round(1 / seconds)) for name, seconds in found if seconds > 0]
    return _table("Issue rate: what the host takes for an operator", columns, rows,
                  "A step of short kernels takes no less than this.")  # fmt: skip


def conditions_table(calibration: Calibration) -> Table:
    """What may matter to somebody who measures again."""
    columns = (Column("name", "condition", Unit.NAME), Column("value", "", Unit.TEXT))
    known = {
        "device": calibration.device,
        "date": calibration.date,
        "torch": calibration.torch_version,
        "threads": "" if calibration.threads is None else str(calibration.threads),
        "samples": str(len(calibration.samples)),
        **calibration.conditions,
    }
    return _table("Conditions", columns, [(name, value) for name, value in known.items() if value])


def _table(
    title: str, columns: tuple[Column, ...], rows: Iterable[tuple[Cell, ...]], note: str = ""
) -> Table:
    return Table(title, columns, tuple(rows), (None,) * len(columns), note=note)


# The plot --------------------------------------------------------------------------------------


def product_plot(device: str, products: Sequence[ProductRate], limits: Limits) -> Plot:
    """FLOP/s by FLOPs of a product, in each dtype the best of those with as much work."""
    dtypes = ordered(it.dtype for it in products)
    best: dict[tuple[str, int], ProductRate] = {}
    for it in sorted(products, key=lambda it: it.flop_per_s):
        best[it.dtype, it.flops] = it
    peaks = {it: rate for it in dtypes if (rate := limits.flop_per_s(it)) is not None}
    x_low, x_high = span(it.flops for it in best.values())
    y_low, y_high = span([*(it.flop_per_s for it in best.values()), *peaks.values()])
    return Plot(
        title=f"Products on {device}",
        x=Axis("work of one product, 2 M N K", Scale.FLOPS, x_low, x_high),
        y=Axis("speed", Scale.FLOP_PER_S, y_low, y_high),
        series_title="dtype",
        series=tuple(dtypes),
        curves=tuple(
            Curve(dtype, peak, Unit.FLOP_PER_S, ((x_low, peak), (x_high, peak)), limits.basis,
                  dtypes.index(dtype))
            for dtype, peak in peaks.items()
        ),
        marks=tuple(_marks(best.values(), dtypes)),
        note="Of the products with as much work, the fastest.",
    )  # fmt: skip


def _marks(best: Iterable[ProductRate], dtypes: Sequence[str]) -> Iterator[Mark]:
    for it in sorted(best, key=lambda it: -it.flop_per_s):
        yield Mark(
            x=it.flops,
            y=it.flop_per_s,
            symbol=SYMBOLS.get(it.dtype, it.dtype[:1]),
            series=dtypes.index(it.dtype),
            name=f"{sides(it)} {it.layout}",
            detail=it.dtype,
        )
