"""A head whose logits are in parts of the vocabulary, and the loss over them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = parallelize_module(
    nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64)).cuda(),
    mesh,
    {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "1": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    },
)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for _ in range(3):
    tokens = torch.randint(0, 64, (16,), device="cuda")
    with loss_parallel():
        nn.functional.cross_entropy(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
