"""Checkpoints written, read back and gone on from."""

import torch

model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _step in range(4):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    saved = torch.load("ckpt.pt", map_location="cuda")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
