"""LBFGS, which calls a closure as often as it likes: here once."""

import torch

model = torch.nn.Linear(16, 8).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, history_size=1)
x, y = torch.randn(16, 16, device="cuda"), torch.randn(16, 8, device="cuda")


def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
