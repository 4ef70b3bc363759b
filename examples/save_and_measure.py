"""A script that saves checkpoints and measures itself, as most do."""

import time

import torch
from torch import nn

device = "cuda"
batch, width, steps = 1024, 4096, 2
model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
optimizer = torch.optim.AdamW(model.parameters())

torch.cuda.synchronize()
for _ in range(steps):
    start = time.perf_counter()
    loss = model(torch.randn(batch, width, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"{1e3 * (time.perf_counter() - start):.3f} ms")
    torch.save(model.state_dict(), "ckpt.pt")
