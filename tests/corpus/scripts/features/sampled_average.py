"""A moving average of the weights, from which is sampled after every step."""

import copy

import torch

model = torch.nn.Linear(64, 32).cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight.detach(), 0.01)
    with torch.no_grad():
        sample = average(torch.randn(4, 64, device="cuda")).relu()
