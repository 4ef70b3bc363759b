"""A model in bfloat16 whose optimizer steps float32 copies of its weights."""

import torch

model = torch.nn.Linear(64, 32).cuda().bfloat16()
weights = list(model.parameters())
masters = [weight.detach().clone().float() for weight in weights]
optimizer = torch.optim.AdamW(masters)
for _ in range(3):
    model(
        torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
    ).float().square().mean().backward()
    for master, weight in zip(masters, weights, strict=True):
        master.grad = weight.grad.float()
        weight.grad = None
    optimizer.step()
    for master, weight in zip(masters, weights, strict=True):
        weight.data.copy_(master)
