"""The largest batch found by running out of memory."""

import torch

model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = 1 << 26
while True:
    try:
        model(torch.randn(batch, 1024, device="cuda")).sum().backward()
        break
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        batch //= 2
print("batch", batch)
optimizer.zero_grad()
for _ in range(2):
    model(torch.randn(batch, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
