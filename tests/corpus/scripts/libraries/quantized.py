"""torchao: quantisation-aware training with int8 activations and int4 weights."""

import torch
from torch import nn
from torchao.quantization import quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
quantize_(model, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(16, 64, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
