"""Two layers trained on several GPUs, in the way that is named."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

way = sys.argv[1]
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
make_optimizer = torch.optim.AdamW


class Layers(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(64) if norm else nn.Identity()

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def ddp(model, **options):
    return DistributedDataParallel(
        model.cuda(), device_ids=[torch.cuda.current_device()], **options
    )


def fsdp1(**options):
    return FullyShardedDataParallel(Layers(), device_id=torch.cuda.current_device(), **options)


def fsdp2(**options):
    model = Layers() if "offload_policy" in options else Layers().cuda()
    fully_shard(model.first, **options)
    return fully_shard(model, **options)


batch, rows = 16, 16
if way == "DDP":
    model = ddp(Layers())
elif way == "DDP static graph":
    model = ddp(Layers(), static_graph=True, gradient_as_bucket_view=True)
elif way == "DDP fp16 hook":
    model = ddp(Layers())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif way in ("DDP no_sync", "DDP join"):
    model = ddp(Layers(), find_unused_parameters=way == "DDP join")
elif way == "ZeRO-1":
    model = ddp(Layers())
    make_optimizer = lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.AdamW)  # noqa: E731
elif way == "SyncBatchNorm":
    model = ddp(nn.SyncBatchNorm.convert_sync_batchnorm(Layers(norm=True)))
elif way == "FSDP1":
    model = fsdp1(use_orig_params=True)
elif way == "FSDP1 mixed":
    model = fsdp1(mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16))
elif way == "FSDP1 offload":
    model = fsdp1(cpu_offload=CPUOffload(offload_params=True))
elif way in ("FSDP2", "checkpoint", "async checkpoint"):
    model = fsdp2()
elif way == "FSDP2 mixed":
    model = fsdp2(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
elif way == "FSDP2 kept":
    model = fsdp2(reshard_after_forward=False)
elif way == "FSDP2 offload":
    model = fsdp2(offload_policy=CPUOffloadPolicy())
elif way == "HSDP":
    model = fsdp2(mesh=init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("copies", "parts")))
elif way in ("TP", "SP"):
    mesh = init_device_mesh("cuda", (size,), mesh_dim_names=("tp",))
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    if way == "SP":
        rows = batch // size
        plan[""] = PrepareModuleInput(
            input_layouts=(Shard(0),), desired_input_layouts=(Shard(0),), use_local_output=True
        )
        plan["first"] = ColwiseParallel(input_layouts=Shard(0))
        plan["second"] = RowwiseParallel(output_layouts=Shard(0))
    model = parallelize_module(Layers().cuda(), mesh, plan)
elif way == "TP with FSDP2":
    mesh = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("dp", "tp"))
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    model = fully_shard(parallelize_module(Layers().cuda(), mesh["tp"], plan), mesh=mesh["dp"])
else:
    raise SystemExit(f"no way is called {way!r}")

optimizer = make_optimizer(model.parameters())


def step():
    x = torch.randn(rows, 64, device="cuda")
    if way == "DDP no_sync":
        with model.no_sync():
            model(x).sum().backward()
    model(x).sum().backward()
    if way == "FSDP2":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


if way == "DDP join":
    with Join([model]):
        for _ in range(3):
            step()
else:
    for _ in range(3):
        step()
        if way.endswith("checkpoint"):
            weights, state = get_state_dict(model, optimizer)
            everything = {"model": weights, "optimizer": state}
            if way.startswith("async"):
                dcp.async_save(everything, checkpoint_id="checkpoint").result()
            else:
                dcp.save(everything, checkpoint_id="checkpoint")
            dcp.load(everything, checkpoint_id="checkpoint")
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
dist.destroy_process_group()
