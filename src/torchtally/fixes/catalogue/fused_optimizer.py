"""torch.optim's kernel that updates all parameters at once."""

import libcst as cst

from torchtally.fixes.fix import FileEvidence, ValueChange, fix
from torchtally.fixes.syntax import has_keyword, last_name, with_keyword

FUSED = frozenset(("Adam", "AdamW", "SGD", "Adagrad"))
"""Optimizers that take `fused` (torch/optim/, `_default_to_fused_or_foreach`)."""
OTHERS = ("fused", "foreach", "capturable", "differentiable")


class _Optimizers(cst.CSTTransformer):
    def __init__(self, keyword: str, value: str) -> None:
        super().__init__()
        self.keyword, self.value = keyword, value

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if last_name(original_node.func) not in FUSED or has_keyword(original_node, *OTHERS):
            return updated_node
        return with_keyword(updated_node, self.keyword, self.value)


NEEDS = "an Adam, AdamW, SGD or Adagrad that says neither fused nor foreach"


@fix("fused optimizer", "update parameters by one kernel: fused=True", ValueChange.ROUNDED, NEEDS)
def fused(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Optimizers with fused=True."""
    return module.visit(_Optimizers("fused", "True"))


@fix(
    "optimizer in a loop", "update one parameter at a time: foreach=False", ValueChange.ROUNDED,
    NEEDS,
)  # fmt: skip
def in_a_loop(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Optimizers with foreach=False, which make no copies of a whole list."""
    return module.visit(_Optimizers("foreach", "False"))
