"""A frozen trunk, a trained head."""

import torch

trunk = torch.nn.Linear(64, 64).cuda().requires_grad_(False)
head = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(head.parameters())
for _ in range(2):
    head(trunk(torch.randn(16, 64, device="cuda"))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
