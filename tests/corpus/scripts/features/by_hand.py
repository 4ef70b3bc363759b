"""No optimizer: weights updated in place."""

import torch

w = torch.randn(64, 32, device="cuda", requires_grad=True)
for _ in range(3):
    (torch.randn(16, 64, device="cuda") @ w).square().mean().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
