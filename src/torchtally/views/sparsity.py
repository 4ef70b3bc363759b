"""What weights with 2:4 sparsity would bring: time of their products, memory of the weights."""

from collections import defaultdict
from dataclasses import dataclass

from torchtally.ledger import Entry, Ledger, Line, line_of
from torchtally.table import Column, Number, Prose, Table
from torchtally.timing.roofline.products import products_of
from torchtally.timing.roofline.sparse import compressed_bytes, sparse_product_s, sparse_share
from torchtally.trace import Phase, Role
from torchtally.units import Unit
from torchtally.views.lines import line_texts, root_of
from torchtally.views.view import view
from torchtally.work import Kind

PHASES = frozenset({Phase.FORWARD, Phase.RECOMPUTE, Phase.EVALUATION})
"""In which a product reads a weight as it is pruned: along the dimension that is summed."""
COLUMNS = (
    Column("dense_s", "dense", Unit.SECONDS),
    Column("sparse_s", "2:4", Unit.SECONDS),
    Column("saved_s", "saves", Unit.SECONDS),
    Column("weight_bytes", "weights", Unit.BYTES),
    Column("sparse_weight_bytes", "2:4 weights", Unit.BYTES),
    Column("line", "line", Unit.LINE),
    Column("source", "source", Unit.TEXT),
)


@dataclass(slots=True)
class SparseLine:
    """Products of a line whose weights can be 2:4 sparse."""

    dense_s: float = 0.0
    sparse_s: float = 0.0
    weight_bytes: int = 0
    sparse_weight_bytes: int = 0


@view("sparsity", "what 2:4 sparse weights would bring: time of products, bytes", "time")
def sparsity(ledger: Ledger) -> Table:
    """Table by line, what saves most first; empty without times, and where no rate is known."""
    roofline = ledger.roofline
    is_known = roofline is not None and sparse_share(1, roofline.chip) is not None
    lines = sparse_lines(ledger) if is_known and ledger.is_timed else {}
    note = _note() if is_known else "No rates of 2:4 products are known of this chip."
    root = root_of(map(line_of, ledger.reported))
    ordered = sorted(lines.items(), key=lambda pair: pair[1].sparse_s - pair[1].dense_s)
    rows = tuple(
        (each.dense_s, each.sparse_s, each.dense_s - each.sparse_s, each.weight_bytes,
         each.sparse_weight_bytes, *line_texts(line, root))
        for line, each in ordered
    )  # fmt: skip
    sums = tuple(sum(row[place] for row in rows) for place in range(5))  # type: ignore[misc]
    return Table("With weights of 2:4 sparsity", COLUMNS, rows, (*sums, None, None), note=note)


def sparse_lines(ledger: Ledger) -> dict[Line | None, SparseLine]:
    """Products in forward passes of one 16-bit weight, whose sides are multiples of 16, by line;
    those that a 2:4 weight makes faster.
    """
    assert ledger.roofline is not None
    lines: defaultdict[Line | None, SparseLine] = defaultdict(SparseLine)
    seen: set[int] = set()
    # The first operator that has a storage makes it; views of it come later.
    makers = {number: each for each in reversed(ledger.entries) for number in each.op.outputs}
    for entry in ledger.reported:
        weight = weight_of(ledger, entry, makers)
        if weight is None or entry.kind is not Kind.PRODUCT or entry.op.phase not in PHASES:
            continue
        products = products_of(entry.call, entry.cost)
        if len(products) != 1:
            continue
        (product,) = products
        dense_s = ledger.slot(entry).seconds
        sparse_s = sparse_product_s(product, entry.cost.bytes, ledger.roofline.chip)
        if sparse_s is None or sparse_s >= dense_s:
            continue
        line = lines[line_of(entry)]
        line.dense_s += dense_s
        line.sparse_s += sparse_s
        if weight not in seen:
            seen.add(weight)
            elements = product.K * product.N
            line.weight_bytes += elements * product.itemsize_bytes
            line.sparse_weight_bytes += compressed_bytes(elements, product.itemsize_bytes)
    return dict(lines)


def weight_of(ledger: Ledger, entry: Entry, makers: dict[int, Entry]) -> int | None:
    """The parameter that an operator reads, or that was cast for it."""
    storages = ledger.trace.storages
    for number in entry.op.inputs:
        sources = (number, *(makers[number].op.inputs if number in makers else ()))
        for source in sources[:2]:
            if 0 <= source < len(storages) and storages[source].role is Role.PARAMETER:
                return source
    return None


def _note() -> Prose:
    return (
        "Products of a 16-bit weight with sides that are multiples of ", Number(16, Unit.COUNT),
        ", in forward passes, where cuSPARSELt's published rates make them faster "
        "(docs/constants.md, SPARSE_SHARES); on fewer than ", Number(4096, Unit.COUNT),
        " tokens, or with a side below ", Number(4096, Unit.COUNT), ", kernels reach less; an H100 "
        "takes its PCIe card's share. Others stay dense: gradients of weights, which have no "
        "sparse operand, and of inputs, which need weights that are pruned along both sides. "
        "Weights: two values of four and two bits for the place of each. Pruned without a "
        "pattern, nothing is faster on tensor cores: bytes alone are saved, with a bit for each "
        "number as many as here.",
    )  # fmt: skip
