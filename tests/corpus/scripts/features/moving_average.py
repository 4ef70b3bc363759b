"""An average of the weights beside the model."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = torch.nn.Linear(64, 32).cuda()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(model)
