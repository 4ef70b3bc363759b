"""Every collective once, and stores and objects of Python."""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore("localhost", 29555, size, rank == 0)
store.set(f"name{rank}", "me")
store.wait([f"name{other}" for other in range(size)])
dist.init_process_group("nccl")
x = torch.ones(4 * size, device="cuda")
dist.all_reduce(x, op=dist.ReduceOp.AVG)
dist.broadcast(x, 0)
dist.reduce(x, 0)
dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
dist.all_to_all_single(torch.empty_like(x), x)
dist.gather(x, [torch.empty_like(x) for _ in range(size)] if rank == 0 else None)
dist.scatter(x[:4], [x[:4].clone() for _ in range(size)] if rank == 0 else None)
objects = [None] * size
dist.all_gather_object(objects, {"rank": "any"})
dist.broadcast_object_list(objects, 0)
dist.all_reduce(x, group=dist.new_group([0, 1]))
dist.barrier()
print("ranks", size, len(objects))
dist.destroy_process_group()
