"""transformer_engine.pytorch.cross_entropy: the gradient is written over the logits in forward.

With tensor parallelism a rank has a part of the vocabulary, and of each token all ranks' maxima,
sums and targets' logits are gathered in float32 (pytorch/triton/cross_entropy.py).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally.libraries.operators import layers  # noqa: F401 (defines the operators)

from .tensor_parallel import world_size

STATISTICS = 3


class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        _input: Tensor,
        target: Tensor,
        label_smoothing: float = 0.0,
        reduce_loss: bool = False,
        dist_process_group: Any = None,
        ignore_idx: int = -100,
        is_cg_capturable: bool = False,
    ) -> Tensor:
        *tokens, _ = _input.shape
        operators = torch.ops.transformer_engine
        statistics = operators.online_softmax(_input, target)
        size = 1 if dist_process_group is None else world_size(dist_process_group)
        if size > 1:
            gathered = statistics.new_zeros(statistics.numel() * size)
            dist.all_gather_into_tensor(gathered, statistics, group=dist_process_group)
            statistics = gathered
        loss = operators.cross_entropy_and_gradient(_input, target, statistics)
        ctx.save_for_backward(_input.detach())
        ctx.is_cg_capturable = is_cg_capturable
        result: Tensor = loss.sum() / loss.numel() if reduce_loss else loss.view(tokens)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        one = None if ctx.is_cg_capturable else torch.tensor(1.0, device=grad.device)
        if one is None or not torch.equal(grad, one):
            torch.ops.transformer_engine.scale_rows_(gradient, grad)
        return gradient, *(None,) * 6


parallel_cross_entropy = CrossEntropyFunction.apply
