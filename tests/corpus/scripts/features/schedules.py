"""A warm-up and a cosine, gradients clipped by norm and by value."""

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
warm_up, cosine = LinearLR(optimizer, total_iters=2), CosineAnnealingLR(optimizer, T_max=8)
scheduler = SequentialLR(optimizer, [warm_up, cosine], milestones=[2])
for _ in range(4):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    assert torch.isfinite(norm)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
