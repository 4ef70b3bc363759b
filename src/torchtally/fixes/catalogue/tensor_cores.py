"""float32 products by tensor cores."""

import libcst as cst

from torchtally.fixes.fix import FileEvidence, ValueChange, fix
from torchtally.fixes.syntax import with_statements

CALL = 'torch.set_float32_matmul_precision("high")'


@fix("TF32", "multiply float32 by tensor cores: TF32", ValueChange.CHANGED)
def tensor_cores(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """A script that lets float32 products round their operands to TF32."""
    has_own = "set_float32_matmul_precision" in module.code or "allow_tf32" in module.code
    is_script = "import torch\n" in module.code and evidence.forward
    return module if has_own or not is_script else with_statements(module, (CALL,))
