"""Batches that are copied to the device while it calculates: pinned, and without waiting."""

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, ValueChange, fix
from torchtally.fixes.syntax import dotted, has_keyword, last_name, with_keyword

LOADER = "DataLoader"


def _loaders(module: cst.Module) -> frozenset[str]:
    """Names that are assigned a DataLoader."""
    made = m.findall(module, m.Assign(targets=[m.AssignTarget(m.Name())], value=m.Call()))
    return frozenset(
        each.targets[0].target.value
        for each in made
        if isinstance(each, cst.Assign)
        and isinstance(each.targets[0].target, cst.Name)
        and isinstance(each.value, cst.Call)
        and last_name(each.value.func) == LOADER
    )


def _names(node: cst.CSTNode) -> frozenset[str]:
    found = m.findall(node, m.Name())
    return frozenset(each.value for each in found if isinstance(each, cst.Name))


def _is_cast(call: cst.Call) -> bool:
    """Whether it is to(torch.float32), or another dtype's."""
    return any(dotted(arg.value).startswith("torch.") for arg in call.args)


def _is_back(call: cst.Call) -> bool:
    """Whether it is to("cpu"): the host would read memory that is not written yet."""
    texts = m.findall(call, m.SimpleString())
    return any("cpu" in each.value for each in texts if isinstance(each, cst.SimpleString))


class _Copies(cst.CSTTransformer):
    """Copies of what a loop over a DataLoader gives, and the DataLoader."""

    def __init__(self, loaders: frozenset[str]) -> None:
        super().__init__()
        self.loaders = loaders
        self.batches: list[frozenset[str]] = []
        self.copies = 0

    def visit_For(self, node: cst.For) -> None:
        is_loader = self.loaders & _names(node.iter)
        self.batches.append(_names(node.target) if is_loader else frozenset())

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        self.batches.pop()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        func = original_node.func
        if last_name(func) == LOADER and not has_keyword(original_node, "pin_memory"):
            return with_keyword(updated_node, "pin_memory", "True")
        if not isinstance(func, cst.Attribute) or func.attr.value not in ("to", "cuda"):
            return updated_node
        batch = func.value.value if isinstance(func.value, cst.Subscript) else func.value
        is_batch = isinstance(batch, cst.Name) and batch.value in frozenset().union(*self.batches)
        is_left = has_keyword(original_node, "non_blocking") or _is_back(original_node)
        if not is_batch or is_left or _is_cast(original_node):
            return updated_node
        self.copies += 1
        return with_keyword(updated_node, "non_blocking", "True")


@fix(
    "pinned copies", "copy batches while the device calculates: pin_memory, non_blocking",
    ValueChange.SAME, "a loop over a DataLoader of this file that copies its batches",
)  # fmt: skip
def pinned(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Loops over a DataLoader whose copies wait for nothing, from pinned memory."""
    copies = _Copies(_loaders(module))
    changed = module.visit(copies)
    return changed if copies.copies else module
