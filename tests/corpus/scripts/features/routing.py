"""Top-1 routing by argmax and bincount: each expert's tokens in a product of their own."""

import torch
from torch import nn

T, D, F, E = 256, 32, 128, 4


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.up = nn.ModuleList(nn.Linear(D, F, bias=False) for _ in range(E))
        self.down = nn.ModuleList(nn.Linear(F, D, bias=False) for _ in range(E))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        chosen = scores.argmax(-1)
        counts = torch.bincount(chosen, minlength=E).tolist()
        order = chosen.argsort()
        parts = x[order].split(counts)
        results = [
            down(torch.relu(up(part)))
            for up, down, part in zip(self.up, self.down, parts, strict=True)
        ]
        y = torch.cat(results) * scores.gather(1, chosen[:, None])[order]
        return torch.empty_like(y).index_copy(0, order, y)


model = Experts().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(T, D, device="cuda", requires_grad=True)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
