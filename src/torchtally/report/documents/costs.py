"""Costs of lines, modules and operators."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import field

from torchtally.report.documents.account import in_line
from torchtally.report.keys import Bytes, Count, DocumentPart, Flops, Seconds, filled, key

if TYPE_CHECKING:
    from torchtally.ledger import Entry, Key, Ledger

    Times = Callable[[Key], Mapping[str, Any]]
    """Time of a row and what bounds it. Null without times, the bound also of what takes none."""


class TotalsPart(DocumentPart, frozen=True):
    flops: Flops
    flops_forward: Annotated[Flops, key("Of the forward pass")]
    flops_backward: Annotated[Flops, key("Of the backward pass")]
    flops_recompute: Annotated[Flops, key("Of activation recomputation: forward work repeated")]
    flops_optimizer: Annotated[Flops, key("Of the optimizer step, clipping included")]
    flops_evaluation: Annotated[Flops, key("Of evaluation: forward passes without a backward pass")]
    flops_matmul: Annotated[Flops, key("Of matrix products and attention only")]
    bytes_read: Annotated[Bytes, key("Read from memory")]
    bytes_written: Annotated[Bytes, key("Written to memory")]


class Costs(DocumentPart, frozen=True):
    """Costs of a line of code or of a module."""

    flops_forward: Flops
    flops_backward: Flops
    flops_recompute: Flops
    flops_optimizer: Flops
    flops_evaluation: Flops
    bytes_read: Bytes
    bytes_written: Bytes
    bytes_saved: Annotated[Bytes, key("Saved by the forward pass for the backward pass")]
    bytes_allocated: Annotated[Bytes, key("Of storages that were newly allocated")]
    count: Count
    seconds: Seconds | None
    kernel_s: Seconds | None
    bound: Annotated[str | None, key("What takes the time: compute, memory, network, overhead")]


class LineCosts(Costs, frozen=True):
    file: str | None
    line: Count | None
    source: str | None
    views: Annotated[Count, key("Operators that only made another view of a tensor")]
    copies: Annotated[Count, key("Operators that copied a tensor to change its layout")]


class ModuleCosts(Costs, frozen=True):
    module: str
    module_class: Annotated[str, key("Of a module")] = field(name="class")
    flops_with_children: Annotated[Flops, key("Of a module with all modules inside it")]
    seconds_with_children: Annotated[Seconds | None, key("Of a module with all modules inside it")]


class OperatorCosts(DocumentPart, frozen=True):
    op: str = field(name="operator")
    count: Count
    flops: Flops
    bytes_read: Bytes
    bytes_written: Bytes
    seconds: Seconds | None
    kernel_s: Seconds | None
    bound: str | None


def _times(ledger: "Ledger", group_of: "Callable[[Entry], Key]") -> "Times[Key]":
    from torchtally.views.bottlenecks import dominant_bounds

    if not ledger.is_timed:
        return lambda group: {"seconds": None, "kernel_s": None, "bound": None}
    bounds = dominant_bounds(ledger, group_of)
    return lambda group: {"bound": bounds.get(group)}


def lines_part(ledger: "Ledger") -> list[LineCosts]:
    from torchtally.ledger import line_of, once_per_site
    from torchtally.views.columns import dearest_first

    times = _times(ledger, once_per_site(line_of))
    return [
        in_line(LineCosts, line, total, **times(line))
        for line, total in dearest_first(ledger.by_line())
    ]


def operators_part(ledger: "Ledger") -> list[OperatorCosts]:
    from torchtally.ledger import op_of
    from torchtally.views.columns import dearest_first

    times = _times(ledger, op_of)
    return [
        filled(OperatorCosts, total, op=op, **times(op))
        for op, total in dearest_first(ledger.by_op())
    ]


def modules_part(ledger: "Ledger") -> list[ModuleCosts]:
    """Every module: its own figures, and the FLOPs with the modules inside it."""
    from torchtally.ledger import Total, module_of, once_per_site
    from torchtally.views.modules import in_order, with_children

    own = ledger.by_module()
    whole = with_children(own)
    times = _times(ledger, once_per_site(module_of))
    return [
        filled(
            ModuleCosts,
            own.get(path, Total()),
            path,
            flops_with_children=whole[path].flops,
            seconds_with_children=whole[path].seconds if ledger.is_timed else None,
            **times(path),
        )
        for path in in_order(whole)
    ]
