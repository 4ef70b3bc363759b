"""Quantisation-aware training: weights and activations quantised and dequantised."""

import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32)
        self.weights = FakeQuantize(
            MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8
        )
        self.activations = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x):
        weight = self.weights(self.layer.weight)
        return nn.functional.linear(self.activations(x), weight, self.layer.bias)


model = Quantised().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
