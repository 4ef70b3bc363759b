"""A forward pass in bfloat16, with weights as they are."""

from collections.abc import Sequence

import libcst as cst

from torchtally.fixes.fix import FileEvidence, NotApplicableError, ValueChange, fix
from torchtally.fixes.syntax import first_line, with_statements

HEAD = 'torch.autocast("cuda", dtype=torch.bfloat16)'


class _Forward(cst.CSTTransformer):
    """Statements of the forward pass, in a block that calls backward, together in a `with`."""

    def __init__(self, module: cst.Module, forward: frozenset[str]) -> None:
        super().__init__()
        self.module, self.forward = module, forward
        self.is_changed = False

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(body=self.wrapped(original_node.body, updated_node.body))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self.wrapped(original_node.body, updated_node.body))

    def wrapped(
        self, before: Sequence[cst.BaseStatement], after: Sequence[cst.BaseStatement]
    ) -> Sequence[cst.BaseStatement]:
        texts = [
            first_line(self.module, each) if isinstance(each, cst.SimpleStatementLine) else ""
            for each in before
        ]
        end = next((place for place, text in enumerate(texts) if ".backward(" in text), 0)
        places = [place for place, text in enumerate(texts[:end]) if text in self.forward]
        if not places:
            return after
        self.is_changed = True
        first, end = places[0], places[-1] + 1
        head = cst.With(
            [cst.WithItem(cst.parse_expression(HEAD))], cst.IndentedBlock(after[first:end])
        )
        return [*after[:first], head, *after[end:]]


@fix(
    "autocast", "run the forward pass in bfloat16: torch.autocast", ValueChange.CHANGED,
    "a script without autocast that calls its model in a block with backward",
)  # fmt: skip
def autocast(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """The lines that call the model and its loss below `torch.autocast`."""
    if "autocast" in module.code or not evidence.forward:
        return module
    if "bfloat16" not in evidence.peaks:
        raise NotApplicableError(
            "the chip has no rate for bfloat16; float16 needs a GradScaler, another change"
        )
    forward = _Forward(module, evidence.forward)
    changed = module.visit(forward)
    return with_statements(changed, ("import torch",)) if forward.is_changed else module
