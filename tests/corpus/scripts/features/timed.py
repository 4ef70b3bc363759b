"""Steps timed by events and by the clock; memory asked for."""

import time

import torch

model = torch.nn.Linear(4096, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before = time.perf_counter()
    start.record()
    model(torch.randn(4096, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    end.record()
    torch.cuda.synchronize()
    seconds, events_s = time.perf_counter() - before, start.elapsed_time(end) / 1e3
flops = 4 * 4096**3
print("MFU", flops / seconds / 67e12, flops / events_s / 67e12)
print("peak", torch.cuda.max_memory_allocated())
