"""float32 products by tensor cores."""

import libcst as cst

from torchtally.fixes.fix import FileEvidence, NotApplicableError, ValueChange, fix
from torchtally.fixes.syntax import imported_modules, imports, with_statements

IMPORT = "import torch"
CALL = 'set_float32_matmul_precision("high")'


@fix(
    "TF32", "multiply float32 by tensor cores: TF32", ValueChange.CHANGED,
    "a script that imports torch and does not set the precision of float32 products",
)  # fmt: skip
def tensor_cores(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """A script that lets float32 products round their operands to TF32."""
    has_own = "set_float32_matmul_precision" in module.code or "allow_tf32" in module.code
    if has_own or not evidence.forward or not imports(module, "torch"):
        return module
    if "tf32" not in evidence.peaks:
        raise NotApplicableError("the chip has no rate for TF32")
    name = imported_modules(module).get("torch", "torch")
    added = (IMPORT,) if name == "torch" else ()
    return with_statements(module, (*added, f"{name}.{CALL}"))
