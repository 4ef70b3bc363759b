"""Losses that are added up with their graphs, so that every step's activations stay."""

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, ValueChange, fix

BACKWARD = m.Call(func=m.Attribute(attr=m.Name("backward")))


def _losses(function: cst.CSTNode) -> frozenset[str]:
    """Names on which backward is called by themselves."""
    receivers = [
        call.func.value
        for call in m.findall(function, BACKWARD)
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
    ]
    return frozenset(each.value for each in receivers if isinstance(each, cst.Name))


def _differentiated(function: cst.CSTNode) -> frozenset[str]:
    """Names in what backward is called on, or that a function gives back: their graphs are used."""
    places = [
        *m.findall(function, BACKWARD),
        *m.findall(function, m.Return()),
        *m.findall(function, m.Call(func=m.Attribute(attr=m.Name("grad")))),
    ]
    return frozenset(
        name.value
        for place in places
        for name in m.findall(place, m.Name())
        if isinstance(name, cst.Name)
    )


class _Sums(cst.CSTTransformer):
    """Sums and lists of losses, function by function: names mean nothing in another."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.scopes: list[cst.CSTNode] = [module]

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.scopes.append(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self.scopes.pop()
        return updated_node

    def is_used(self, sum_: cst.BaseExpression) -> bool:
        """Whether what losses are added to is, or may be, differentiated."""
        return not isinstance(sum_, cst.Name) or sum_.value in _differentiated(self.scopes[-1])

    def leave_AugAssign(
        self, original_node: cst.AugAssign, updated_node: cst.AugAssign
    ) -> cst.AugAssign:
        if self.is_used(original_node.target) or not self.is_loss(original_node.value):
            return updated_node
        return updated_node.with_changes(value=_detached(updated_node.value))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        is_append = m.matches(original_node, m.Call(func=m.Attribute(attr=m.Name("append"))))
        if not is_append or len(original_node.args) != 1:
            return updated_node
        (arg,) = updated_node.args
        func = original_node.func
        if isinstance(func, cst.Attribute) and self.is_used(func.value):
            return updated_node
        if not self.is_loss(original_node.args[0].value):
            return updated_node
        return updated_node.with_changes(args=[arg.with_changes(value=_detached(arg.value))])

    def is_loss(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value in _losses(self.scopes[-1])


def _detached(value: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(value, cst.Name("detach")))


@fix(
    "detached losses", "add losses up without their graphs: loss.detach()", ValueChange.SAME,
    "a sum or a list of losses that is not differentiated",
)  # fmt: skip
def detached(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Sums and lists of losses, detached."""
    return module.visit(_Sums(module))
