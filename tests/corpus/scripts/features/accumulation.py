"""Four micro-batches to a step."""

import torch

model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for micro_batch in range(8):
    loss = model(torch.randn(16, 64, device="cuda")).square().mean() / 4
    loss.backward()
    if (micro_batch + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
