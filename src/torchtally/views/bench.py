"""What `tally bench` measured of one device, beside what its data sheet promises."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtally.chips import Chip, find_chip
from torchtally.chips.processor import estimated_flop_per_s, model_name
from torchtally.errors import UsageError
from torchtally.table import Cell, Column, Table
from torchtally.timing.calibration import Calibration
from torchtally.timing.calibration.rates import (
    AttentionRate,
    CopyRate,
    ProductRate,
    attention_rates,
    copy_rates,
    product_rates,
)
from torchtally.units import Unit
from torchtally.views.plot import Axis, Basis, Curve, Mark, Plot, Scale, span

DTYPES = ("float32", "tf32", "bfloat16", "float16")
"""In the order of columns and colours; any other comes after these."""
SYMBOLS = {"float32": "f", "tf32": "t", "bfloat16": "b", "float16": "h"}
"""In a plot. "h" is half precision."""


@dataclass(frozen=True, slots=True)
class BenchView:
    """Everything that was measured, finished."""

    title: str
    tables: tuple[tuple[str, Table], ...]
    """By name, as a document's keys."""
    plot: Plot


@dataclass(frozen=True, slots=True)
class Limits:
    """What products of each dtype could reach at best, and who says so."""

    chip: Chip | None
    """From the hardware table; None for a device that is not in it, such as a CPU."""
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
        """MFU: the part of the limit that was reached; None where the limit is unknown."""
        limit = self.flop_per_s(dtype)
        return None if limit is None or flop_per_s is None else flop_per_s / limit


def bench_view(calibration: Calibration, estimated_float32: float | None = None) -> BenchView:
    """Everything in a calibration. The estimate is for a CPU, which has no data sheet peak."""
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
    return BenchView(
        title=f"{calibration.device}, measured {calibration.date}",
        tables=tuple((name, table) for name, table in tables.items() if table.rows),
        plot=product_plot(calibration.device, products, limits),
    )


def estimated_float32(calibration: Calibration, cpuinfo: Path) -> float | None:
    """FLOP/s that the CPU could do at best; None of another machine's, or an unknown one."""
    if calibration.kind != "cpu":
        return None
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return None
    if model_name(text) != calibration.device:
        return None
    return estimated_flop_per_s(text, calibration.threads)


def known_chip(calibration: Calibration) -> Chip | None:
    """The chip of the hardware table that was measured; None where it is not in it."""
    return find_chip(calibration.device) if calibration.kind == "cuda" else None


def dtypes_in_order(dtypes: Iterable[str]) -> list[str]:
    """Those of DTYPES first."""
    measured = dict.fromkeys(dtypes)
    return [
        *(dtype for dtype in DTYPES if dtype in measured),
        *(dtype for dtype in measured if dtype not in DTYPES),
    ]


def sides(product_rate: ProductRate) -> str:
    """M, N and K as "8192x4096x4096"; a batch stands before them."""
    batch, *rest = product_rate.shape
    return "x".join(map(str, rest if batch == 1 else product_rate.shape))


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
        Column("shape", "best shape, MxNxK", Unit.TEXT),
    )
    best = {
        product.dtype: product
        for product in sorted(products, key=lambda product: product.flop_per_s)
    }
    rows: list[tuple[Cell, ...]] = []
    for dtype in dtypes_in_order([*calibration.peak_flop_per_s, *best]):
        product = best.get(dtype)
        rate = product.flop_per_s if product else calibration.peak_flop_per_s[dtype]
        shape = f"{sides(product)} ({product.layout})" if product else ""
        limit = limits.flop_per_s(dtype)
        rows.append((dtype, rate, limit, limits.share(rate, dtype), shape))
    has_estimate = limits.chip is None and limits.estimated_float32 is not None
    note = "MFU is the achieved share of the promised dense peak."
    if limits.chip is None:
        note = "No data sheet gives a peak for this device" + (
            ": cores x clock x FLOPs per cycle of its widest instructions, estimated."
            if has_estimate
            else "."
        )
    return _table("Products: achieved against promised", columns, rows, note)


def bandwidth_table(
    calibration: Calibration, copies: Sequence[CopyRate], gpu: Chip | None
) -> Table:
    """Memory, and the ways between host and device, each at its best."""
    columns = (
        Column("transfer", "path", Unit.NAME),
        Column("achieved_bytes_per_s", "achieved", Unit.BYTE_PER_S),
        Column("promised_bytes_per_s", "promised", Unit.BYTE_PER_S),
        Column("peak_share", "share", Unit.FRACTION),
    )
    link = gpu.host_link.bytes_per_s_per_direction if gpu and gpu.host_link else None
    paths = [
        (
            "memory, read and written",
            calibration.bandwidth_bytes_per_s,
            gpu.memory_bandwidth_bytes_per_s if gpu else None,
        )
    ]
    for name, is_to_device, is_pinned in WAYS:
        rates = [
            copy.bytes_per_s
            for copy in copies
            if (copy.is_to_device, copy.is_pinned) == (is_to_device, is_pinned)
        ]
        if rates:
            paths.append((name, max(rates), link))
    rows = [(name, rate, limit, rate / limit if limit else None) for name, rate, limit in paths]
    return _table("Bandwidth: achieved against promised", columns, rows)


WAYS = (
    ("host to device, pinned", True, True),
    ("host to device, pageable", True, False),
    ("device to host, pinned", False, True),
    ("device to host, pageable", False, False),
)
"""(name, to the device, from or to page-locked memory)"""


def same_shapes_table(products: Sequence[ProductRate], limits: Limits) -> Table:
    """The same products in float32 and in half precision: one for each amount of work, largest
    first. No rows where only one of them was measured.
    """
    by_place: dict[tuple[tuple[int, ...], str], dict[str, ProductRate]] = {}
    for product in products:
        by_place.setdefault((product.shape, product.layout), {})[product.dtype] = product
    measured = {product.dtype for product in products}
    half = next((name for name in ("bfloat16", "float16") if name in measured), "")
    chosen: dict[int, tuple[ProductRate, ProductRate]] = {}
    shared = [
        (record["float32"], record[half])
        for record in by_place.values()
        if {"float32", half} <= set(record)
    ]
    for pair in sorted(shared, key=lambda rates: _plainness(rates[0])):
        chosen.setdefault(pair[0].flops, pair)
    pairs = [pair for _, pair in sorted(chosen.items(), reverse=True)]
    bounded = [name for name in ("float32", half) if limits.flop_per_s(name) is not None]
    columns = (
        Column("shape", "MxNxK", Unit.NAME),
        Column("float32_flop_per_s", "float32", Unit.FLOP_PER_S),
        Column(f"{half}_flop_per_s", half, Unit.FLOP_PER_S),
        Column("times", "times", Unit.TIMES),
        *(Column(f"{name}_mfu", f"{_short(name)} MFU", Unit.FRACTION, 1) for name in bounded),
    )
    rows = [
        (
            sides(single),
            single.flop_per_s,
            other.flop_per_s,
            other.flop_per_s / single.flop_per_s,
            *(
                limits.share(product_rate.flop_per_s, product_rate.dtype)
                for product_rate in (single, other)
                if product_rate.dtype in bounded
            ),
        )
        for single, other in pairs
    ]
    return _table(
        f"float32 beside {half}, the same products",
        columns,
        rows,
        f"times: how many times as fast {half} is.",
    )


def _plainness(product_rate: ProductRate) -> tuple[float, int, str]:
    """A cube comes first, then products without a batch, then a layer's forward pass ("NT")."""
    return (
        product_rate.slenderness,
        product_rate.shape[0],
        "" if product_rate.layout == "NT" else product_rate.layout,
    )


SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _short(dtype: str) -> str:
    return SHORT.get(dtype, dtype)


def attention_table(rates: Sequence[AttentionRate], limits: Limits) -> Table:
    """Each shape and dtype: forward, backward, in full and causal."""
    has_limit = any(limits.flop_per_s(rate.dtype) is not None for rate in rates)
    columns = (
        Column("shape", "BHxSxD", Unit.NAME),
        Column("dtype", "dtype", Unit.WORD),
        *(Column(name, title, Unit.FLOP_PER_S, rank) for name, title, rank, *_ in PASSES),
        *([Column("mfu", "best MFU", Unit.FRACTION, 1)] if has_limit else []),
    )
    by_shape: dict[AttentionKey, dict[tuple[bool, bool], float]] = {}
    work: dict[AttentionKey, int] = {}
    for rate in rates:
        key, way = (rate.shape, rate.dtype), (rate.is_backward, rate.is_causal)
        work[key] = max(work.get(key, 0), rate.flops)
        row = by_shape.setdefault(key, {})
        row[way] = max(row.get(way, 0.0), rate.flop_per_s)
    places = {dtype: n for n, dtype in enumerate(dtypes_in_order(rate.dtype for rate in rates))}
    rows = [
        (
            _attention_sides(key[0]),
            key[1],
            *(by_shape[key].get((is_backward, is_causal)) for *_, is_backward, is_causal in PASSES),
            *([limits.share(_best_of_full(by_shape[key]), key[1])] if has_limit else []),
        )
        for key in sorted(by_shape, key=lambda pair: (places[pair[1]], -work[pair]))
    ]
    note = (
        "Batch times heads, length (of queries/keys where they differ), head dim. Causal attention "
        "is counted in full, though half of it need not be computed."
    )
    return _table("Attention", columns, rows, note)


def _attention_sides(shape: tuple[int, int, int, int]) -> str:
    batch, queries, keys, dim = shape
    length = str(queries) if queries == keys else f"{queries}/{keys}"
    return f"{batch}x{length}x{dim}"


AttentionKey = tuple[tuple[int, int, int, int], str]


def _best_of_full(passes: Mapping[tuple[bool, bool], float]) -> float | None:
    return max((rate for (_, is_causal), rate in passes.items() if not is_causal), default=None)


PASSES = (
    ("forward_flop_per_s", "forward", 0, False, False),
    ("backward_flop_per_s", "backward", 0, True, False),
    ("causal_forward_flop_per_s", "causal fwd", 2, False, True),
    ("causal_backward_flop_per_s", "causal bwd", 3, True, True),
)
"""(name, title, rank, backward, causal)"""


def copy_table(copies: Sequence[CopyRate]) -> Table:
    """Table by size, the largest first."""
    columns = (
        Column("bytes", "size", Unit.BYTES),
        *(
            Column(
                name.replace(", ", "_").replace(" ", "_") + "_bytes_per_s", title, Unit.BYTE_PER_S
            )
            for (name, *_), title in zip(WAYS, WAY_TITLES, strict=True)
        ),
    )
    rates = {(copy.bytes, copy.is_to_device, copy.is_pinned): copy.bytes_per_s for copy in copies}
    rows = [
        (size, *(rates.get((size, is_in, is_pinned)) for _, is_in, is_pinned in WAYS))
        for size in sorted({copy.bytes for copy in copies}, reverse=True)
    ]
    return _table("Copies between host and device", columns, rows)


WAY_TITLES = ("in, pinned", "in, pageable", "out, pinned", "out, pageable")


def issue_table(calibration: Calibration) -> Table:
    """What the host takes per operator of a plain training loop."""
    issue = calibration.issue
    columns = (
        Column("operator", "operator", Unit.NAME),
        Column("seconds", "each", Unit.SECONDS),
        Column("operators_per_s", "per second", Unit.COUNT),
    )
    stages = (
        ("forward", issue.forward_s),
        ("backward", issue.backward_s),
        ("optimizer", issue.optimizer_s),
        ("view", issue.view_s),
        ("each further kernel", issue.launch_s),
        ("each tensor of a list", issue.list_s),
    )
    rows = [(name, seconds, round(1 / seconds)) for name, seconds in stages if seconds > 0]
    return _table(
        "Issue rate: host time per operator",
        columns,
        rows,
        "A step of short kernels takes at least this.",
    )


def conditions_table(calibration: Calibration) -> Table:
    """What may matter to somebody who measures again."""
    columns = (Column("name", "condition", Unit.NAME), Column("value", "", Unit.TEXT))
    conditions = {
        "device": calibration.device,
        "date": calibration.date,
        "torch": calibration.torch_version,
        "threads": "" if calibration.threads is None else str(calibration.threads),
        "samples": str(len(calibration.samples)),
        "missing": ", ".join(calibration.missing),
        **calibration.conditions,
    }
    return _table(
        "Conditions", columns, [(name, value) for name, value in conditions.items() if value]
    )


def _table(
    title: str, columns: tuple[Column, ...], rows: Iterable[tuple[Cell, ...]], note: str = ""
) -> Table:
    return Table(title, columns, tuple(rows), note=note)


# The plot --------------------------------------------------------------------------------------


def product_plot(device: str, products: Sequence[ProductRate], limits: Limits) -> Plot:
    """FLOP/s by FLOPs of a product, in each dtype the best of those with as much work."""
    dtypes = dtypes_in_order(product.dtype for product in products)
    best: dict[tuple[str, int], ProductRate] = {}
    for product in sorted(products, key=lambda product: product.flop_per_s):
        best[product.dtype, product.flops] = product
    peaks = {dtype: rate for dtype in dtypes if (rate := limits.flop_per_s(dtype)) is not None}
    x_low, x_high = span(product_rate.flops for product_rate in best.values())
    y_low, y_high = span(
        [*(product_rate.flop_per_s for product_rate in best.values()), *peaks.values()]
    )
    return Plot(
        title=f"Products on {device}",
        x=Axis("work of one product, 2 M N K", Scale.FLOPS, x_low, x_high),
        y=Axis("speed", Scale.FLOP_PER_S, y_low, y_high),
        series_title="dtype",
        series=tuple(dtypes),
        curves=tuple(
            Curve(name, peak, Unit.FLOP_PER_S, ((x_low, peak), (x_high, peak)), limits.basis)
            for name, peak in _by_rate(peaks)
        ),
        marks=tuple(_marks(best.values(), dtypes)),
        note="The fastest of the products with as much work.",
    )


def _by_rate(peaks: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Highest first; dtypes of one rate under one name."""
    for rate in sorted(set(peaks.values()), reverse=True):
        yield ", ".join(dtype for dtype, peak in peaks.items() if peak == rate), rate


def _marks(best: Iterable[ProductRate], dtypes: Sequence[str]) -> Iterator[Mark]:
    for product_rate in sorted(best, key=lambda product_rate: -product_rate.flop_per_s):
        yield Mark(
            x=product_rate.flops,
            y=product_rate.flop_per_s,
            symbol=SYMBOLS.get(product_rate.dtype, product_rate.dtype[:1]),
            series=dtypes.index(product_rate.dtype),
            name=f"{sides(product_rate)} {product_rate.layout}",
            detail=product_rate.dtype,
        )
