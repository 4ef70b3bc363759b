"""FSDP2 with compiled blocks holds the bytes that PyTorch's CUDA build holds.

These were printed by `script`, with `init_process_group("fake", store=FakeStore(), rank=0,
world_size=8)`, on PyTorch 2.13.0+cu130 by `python -m tests.truth.driver`, cold.
"""

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.traces import traced

WIDTH, BLOCKS = 1024, 4


class Held(NamedTuple):
    after_forward: int
    after_backward: int
    after_step: int
    peak: int
    reserved: int


FIRST = Held(411_187_712, 117_469_696, 134_273_536, 520_268_800, 587_202_560)
LATER = Held(478_337_536, 151_065_088, 134_273_536, 553_864_192, 620_756_992)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@pytest.mark.thorough("truth/compiled and distributed/test_against_gloo.py")
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="recorded with 2.13")
def test_compiled_blocks_hold_what_the_cuda_build_holds() -> None:
    steps: list[Held] = []

    def script() -> None:
        dist.init_process_group("nccl")
        model = nn.Sequential(*(Block() for _ in range(BLOCKS))).cuda()
        for block in model:
            block.compile()
            fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        held = torch.cuda.memory_allocated
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            x = torch.zeros(8, 512, WIDTH, device="cuda")
            loss = model(x).pow(2).mean()
            after_forward = held()
            loss.backward()
            after_backward = held()
            optimizer.step()
            optimizer.zero_grad()
            peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            steps.append(Held(after_forward, after_backward, held(), peak, reserved))

    traced(script, gpu="8xH100-SXM")
    assert steps == [FIRST, LATER, LATER]
