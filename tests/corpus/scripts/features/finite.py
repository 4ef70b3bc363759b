"""Conditions on large tensors: finite, all, any, equal."""

import torch

w = torch.randn(4096, 4096, device="cuda")
assert torch.isfinite(w).all()
assert torch.equal(w, w)
assert not torch.isnan(torch.zeros(4096, 4096, device="cuda")).any()
model = torch.nn.Linear(4096, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(w).square().mean()
    if not torch.isfinite(loss):
        raise SystemExit("diverged")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
