"""Evaluation under inference_mode, its loader pinned, before and between training."""

import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(64, 64), torch.randn(64, 32))
training = DataLoader(data, batch_size=16, pin_memory=True)
validation = DataLoader(data, batch_size=32, pin_memory=True)


@torch.inference_mode()
def evaluate():
    losses = []
    for x, y in validation:
        assert x.is_pinned()
        losses.append(torch.nn.functional.mse_loss(model(x.cuda(non_blocking=True)), y.cuda()))
    return torch.stack(losses).mean().item()


for _epoch in range(2):
    print("validation", evaluate())
    for x, y in training:
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
