"""Sequences of different lengths in one jagged tensor, through attention."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, [4, 16]).transpose(1, 2) for part in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


model = Attention().to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    rows = [torch.randn(n, 64, device="cuda", dtype=torch.bfloat16) for n in (3, 5, 8)]
    batch = torch.nested.nested_tensor(rows, layout=torch.jagged)
    model(batch).values().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
