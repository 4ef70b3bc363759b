"""A Triton kernel in a training step, and what it costs: run it with `tally run`, or on a GPU.

tally run examples/triton_kernel.py --gpu H100-SXM
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

import torchtally


@triton.jit
def squared_relu_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.maximum(tl.load(x_ptr + offsets, mask=mask), 0.0)
    tl.store(out_ptr + offsets, x * x, mask=mask)


# A comparison and a product for each element. Does nothing on a real GPU.
torchtally.declare_cost("squared_relu_kernel", flops=lambda n_elements: 2 * n_elements)


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        n = x.numel()
        squared_relu_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK_SIZE=1024)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * torch.relu(x) * grad


up = torch.nn.Linear(1024, 4096, device="cuda")
down = torch.nn.Linear(4096, 1024, device="cuda")
optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)
for _ in range(3):
    x = torch.randn(8192, 1024, device="cuda")
    down(SquaredReLU.apply(up(x))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
