"""Which GPU is there, asked of nvidia-smi."""

import subprocess

import torch

query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
name, memory = subprocess.check_output(query, text=True).strip().split(", ")
print("found", name, int(memory) // 1024, "GiB")
model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
