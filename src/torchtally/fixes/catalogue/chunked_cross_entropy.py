"""Cross entropy by pieces of rows, whose log-probabilities are made again in the backward pass."""

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, ValueChange, fix
from torchtally.fixes.syntax import dotted, with_statements

IMPORT = "import torch.utils.checkpoint"
"""By its whole name: scripts call what they save `checkpoint`."""
NAME = "chunked_cross_entropy"
FUNCTION = f'''\
def {NAME}(logits, targets, ignore_index=-100, pieces=8):
    """cross_entropy that keeps no log-probabilities of all rows at once."""

    def summed(rows, classes):
        scores = torch.nn.functional.log_softmax(rows, 1)
        return torch.nn.functional.nll_loss(
            scores, classes, ignore_index=ignore_index, reduction="sum"
        )

    parts = zip(logits.chunk(pieces), targets.chunk(pieces))
    checkpoint = torch.utils.checkpoint.checkpoint
    total = sum(checkpoint(summed, *part, use_reentrant=False) for part in parts)
    return total / (targets != ignore_index).sum()
'''


class _Losses(cst.CSTTransformer):
    """Calls of cross_entropy with logits and classes, and at most what is to be ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.is_changed = False

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        given = [None if arg.keyword is None else arg.keyword.value for arg in original_node.args]
        is_plain = given in ([None, None], [None, None, "ignore_index"])
        is_starred = any(arg.star for arg in original_node.args)
        name = dotted(original_node.func)
        if not name.endswith("functional.cross_entropy") and name != "F.cross_entropy":
            return updated_node
        if not is_plain or is_starred:
            return updated_node
        self.is_changed = True
        return updated_node.with_changes(func=cst.Name(NAME))


@fix(
    "chunked cross entropy", "make log-probabilities again by pieces of rows, in the backward pass",
    ValueChange.ROUNDED, "an F.cross_entropy(logits, classes) without weights or reduction",
)  # fmt: skip
def chunked(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Files with a function for their losses, behind the imports."""
    losses = _Losses()
    changed = module.visit(losses)
    if not losses.is_changed:
        return module
    changed = with_statements(changed, ("import torch", IMPORT))
    body = list(changed.body)
    definition = m.FunctionDef() | m.ClassDef()
    place = next((n for n, each in enumerate(body) if m.matches(each, definition)), None)
    function = cst.parse_statement(FUNCTION)
    lines = [cst.EmptyLine(indent=False)] * 2
    if place is None:  # a script without definitions
        imported = [n for n, each in enumerate(body) if IMPORT in changed.code_for_node(each)]
        place = imported[-1] + 1
    assert isinstance(function, cst.FunctionDef)
    if place < len(body):
        body[place] = body[place].with_changes(leading_lines=[*lines, *_lines_above(body[place])])
    return changed.with_changes(
        body=[*body[:place], function.with_changes(leading_lines=lines), *body[place:]]
    )


def _lines_above(statement: cst.CSTNode) -> list[cst.EmptyLine]:
    """Comments above a statement, without the empty lines before them."""
    lines = list(getattr(statement, "leading_lines", ()))
    while lines and lines[0].comment is None:
        lines.pop(0)
    return lines
