"""Activations recomputed in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)
).cuda()
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(2):
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    for block in blocks:
        x = x + checkpoint(block, x, use_reentrant=True)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
