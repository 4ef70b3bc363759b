"""A graph convolution: a sparse adjacency matrix times dense features."""

import torch

nodes, edges = 32, 128
index = torch.stack(
    [torch.arange(edges) % nodes, (torch.arange(edges) * 7 + torch.arange(edges) // nodes) % nodes]
)
adjacency = torch.sparse_coo_tensor(index, torch.ones(edges), (nodes, nodes)).coalesce()
values = adjacency.values().numel()
print("values", values)
adjacency = adjacency.cuda()
features = torch.randn(nodes, 64, device="cuda")
model = torch.nn.Linear(64, 16, bias=False).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    torch.sparse.mm(adjacency, model(features)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
