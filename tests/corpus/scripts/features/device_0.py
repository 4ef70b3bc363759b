"""Devices by number, by object, by context, and the current one."""

import torch

device = torch.device(0)
assert device == torch.device("cuda", 0) == torch.device("cuda:0")
torch.cuda.set_device(device)
with torch.device(0):
    model = torch.nn.Linear(64, 32)
model = model.to(0).to(device).cuda(0)
assert next(model.parameters()).get_device() == torch.cuda.current_device() == 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(16, 64).to(0)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
