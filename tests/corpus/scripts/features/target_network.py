"""A target network that follows the one that is trained, and that each step asks."""

import copy

import torch

model = torch.nn.Linear(64, 32).cuda()
target = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    states = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        wanted = target(states)
    (model(states) - wanted).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, weight in zip(target.parameters(), model.parameters(), strict=True):
            mean.mul_(0.99)
            torch.add(mean, weight, alpha=0.01, out=mean)
