"""A whole training step in a CUDA graph, as in torch's notes."""

import torch

model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 64, device="cuda"), torch.randn(16, 32, device="cuda")
loss_of = torch.nn.MSELoss()

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(x), y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(stream)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
for _ in range(4):
    x.copy_(torch.randn(16, 64))
    graph.replay()
