"""Count a script's FLOPs and parameters where it really runs, on the CPU, without torchtally.

    python tests/corpus/on_host.py STEPS SCRIPT ARGUMENTS...

PyTorch's FlopCounterMode counts, a hook behind every optimizer's step reads it. Three formulas are
corrected: `addmm_` and `mv` have none there, and the weight's gradient of a grouped convolution
counts products of channels that it does not have. Prints, for each of the first STEPS steps of
optimizers, the FLOPs since the one before, and how many parameters the optimizers train.
"""

import contextlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import (
    FlopCounterMode,
    addmm_flop,
    conv_backward_flop,
    conv_flop_count,
)

aten = torch.ops.aten


class Enough(BaseException):
    """Not an Exception, so that the script's handlers let it pass."""


def matrix_by_vector(matrix: Any, vector: Any, out_val: Any) -> int:
    return 2 * matrix.numel()


def product_in_place(*args: Any, out_val: Any, **options: Any) -> int:
    flops: int = addmm_flop(*args, out_val=out_val, **options)
    return flops


def convolution_gradients(gradient: Any, x: Any, weight: Any, *others: Any, out_val: Any) -> int:
    """Each of the two costs what the forward pass costs, whatever the groups."""
    *_, is_transposed, _, groups, wanted = others
    if groups == 1:
        flops: int = conv_backward_flop(gradient, x, weight, *others, out_val=out_val)
        return flops
    once: int = conv_flop_count(x.shape, weight.shape, gradient.shape, transposed=is_transposed)
    return sum(wanted[:2]) * once


FORMULAS = {
    aten.addmm_: product_in_place,
    aten.mv: matrix_by_vector,
    aten.convolution_backward: convolution_gradients,
}
for formula in FORMULAS.values():
    formula._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes


def main() -> None:
    wanted = int(sys.argv[1])
    script = sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    totals: list[int] = []
    parameters: dict[int, int] = {}

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        totals.append(counter.get_total_flops())
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameters[id(parameter)] = parameter.numel()
        if len(totals) == wanted:
            raise Enough

    register_optimizer_step_post_hook(after)
    # Fused attention on the CPU has no formula there, and would count as nothing.
    with sdpa_kernel(SDPBackend.MATH), counter, contextlib.suppress(Enough):
        runpy.run_path(script, run_name="__main__")
    steps = [end - start for start, end in zip([0, *totals], totals, strict=False)]
    result = {"steps": steps, "parameters": sum(parameters.values())}
    print("\ncounted:", json.dumps(result))


if __name__ == "__main__":
    main()
