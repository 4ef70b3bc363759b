"""Device memory that no tensor of the script holds: what libraries keep and operators use up."""

from torchtally.memory.workspace import convolutions, flash_attention  # for their rules
from torchtally.memory.workspace.kind import KINDS, Trust, Workspace
from torchtally.memory.workspace.libraries import (
    adds_bias,
    blas_lt_workspace,
    blas_workspace,
    context_bytes,
    context_limits_bytes,
    uses_blas,
)
from torchtally.memory.workspace.scratch import (
    has_scratch,
    has_scratch_before_results,
    scratch,
    scratch_before_results,
)
from torchtally.memory.workspace.trials import is_tried, trial_bytes
