"""PyTorch Geometric: two graph convolutions over an edge list."""

import torch
from torch_geometric.nn import GCNConv

device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = GCNConv(64, 32), GCNConv(32, 7)

    def forward(self, x, edges):
        return self.two(self.one(x, edges).relu(), edges)


edges = torch.stack([torch.arange(256) % 64, (torch.arange(256) * 7 + 1) % 64]).to(device)
x, labels = torch.randn(64, 64, device=device), torch.randint(0, 7, (64,), device=device)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(2):
    torch.nn.functional.cross_entropy(model(x, edges), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
