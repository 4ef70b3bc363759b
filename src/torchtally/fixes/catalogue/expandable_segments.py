"""Memory that the allocator maps piece by piece, so that less of it lies between tensors."""

import libcst as cst

from torchtally.fixes.fix import FileEvidence, ValueChange, fix

LINES = (
    "import os",
    'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")',
)


@fix(
    "expandable segments", "let the allocator grow segments: expandable_segments", ValueChange.SAME,
    "a script that does not set PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip
def expandable(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """A script that sets the allocator before it imports torch."""
    if "PYTORCH_CUDA_ALLOC_CONF" in module.code or not evidence.forward:
        return module
    body = list(module.body)
    is_documented = bool(module.get_docstring())
    future = [each for each in body if "from __future__" in module.code_for_node(each)]
    start = max(int(is_documented), body.index(future[-1]) + 1 if future else 0)
    added = [cst.parse_statement(text) for text in LINES]
    return module.with_changes(body=[*body[:start], *added, *body[start:]])
