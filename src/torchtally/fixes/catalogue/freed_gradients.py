"""Gradients that are freed between steps instead of filled with zeros."""

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, ValueChange, fix

ZEROED = m.Arg(keyword=m.Name("set_to_none"), value=m.Name("False"))


class _Zeroing(m.MatcherDecoratableTransformer):
    @m.leave(m.Call(func=m.Attribute(attr=m.Name("zero_grad")), args=[m.ZeroOrMore(), ZEROED]))
    def free(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        *others, _ = updated_node.args
        if others:
            others[-1] = others[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(args=others)


@fix(
    "freed gradients", "let zero_grad free gradients: no set_to_none=False", ValueChange.SAME,
    "a zero_grad(set_to_none=False)",
)  # fmt: skip
def freed(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """zero_grad without set_to_none=False."""
    return module.visit(_Zeroing())
