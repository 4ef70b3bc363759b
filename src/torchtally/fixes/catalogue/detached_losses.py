"""Losses that are added up with their graphs, so that every step's activations stay."""

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, ValueChange, fix


def _losses(module: cst.Module) -> frozenset[str]:
    """Names on which backward is called."""
    calls = m.findall(module, m.Call(func=m.Attribute(value=m.Name(), attr=m.Name("backward"))))
    return frozenset(
        call.func.value.value
        for call in calls
        if isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and isinstance(call.func.value, cst.Name)
    )


class _Sums(cst.CSTTransformer):
    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self.names = names

    def leave_AugAssign(
        self, original_node: cst.AugAssign, updated_node: cst.AugAssign
    ) -> cst.AugAssign:
        target, value = original_node.target, original_node.value
        # What is added up to be differentiated itself keeps its graph.
        if isinstance(target, cst.Name) and target.value in self.names:
            return updated_node
        if not self.is_loss(value):
            return updated_node
        return updated_node.with_changes(value=_detached(updated_node.value))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        is_append = m.matches(original_node, m.Call(func=m.Attribute(attr=m.Name("append"))))
        if not is_append or len(original_node.args) != 1:
            return updated_node
        (arg,) = updated_node.args
        if not self.is_loss(original_node.args[0].value):
            return updated_node
        return updated_node.with_changes(args=[arg.with_changes(value=_detached(arg.value))])

    def is_loss(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value in self.names


def _detached(value: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(value, cst.Name("detach")))


@fix("detached losses", "add losses up without their graphs: loss.detach()", ValueChange.SAME)
def detached(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Sums and lists of losses, detached."""
    return module.visit(_Sums(_losses(module)))
