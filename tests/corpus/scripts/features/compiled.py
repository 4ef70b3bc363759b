"""torch.compile of the model."""

import torch

model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    compiled(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
