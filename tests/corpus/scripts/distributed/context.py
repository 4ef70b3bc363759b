"""Attention over a sequence of which each GPU has a part."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
project = nn.Linear(64, 3 * 64).cuda().bfloat16()
optimizer = torch.optim.AdamW(project.parameters())
for _ in range(3):
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in project(x).chunk(3, -1))
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
