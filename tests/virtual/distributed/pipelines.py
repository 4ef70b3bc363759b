"""Trainings in stages: every schedule of torch.distributed.pipelining."""

from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)

from tests.virtual.distributed.programs import STEPS, WIDTH, Block, Program

IS_TOLD_GRADIENTS = "input_grads" in signature(PipelineStage).parameters
"""A stage takes the shapes of gradients, as it takes those of what it gets and sends."""


def loss(out: Tensor, target: Tensor) -> Tensor:
    return (out - target).sum()


def places(schedule: type, rank: int, size: int) -> tuple[int, ...]:
    """The numbers of a rank's stages: one, two of a loop, or two of a V."""
    if schedule in (ScheduleGPipe, Schedule1F1B):
        return (rank,)
    if schedule in (ScheduleZBVZeroBubble, ScheduleDualPipeV):
        return rank, 2 * size - 1 - rank
    return rank, rank + size


def gradients(part: Tensor, number: int, count: int) -> dict[str, Any]:
    """Of what a stage gets and sends, where it is told them."""
    if not IS_TOLD_GRADIENTS:
        return {}
    return {
        "input_grads": part if number else None,
        "output_grads": part if number < count - 1 else None,
    }


def in_stages(kind: Any) -> Program:
    """Stages know their shapes beforehand: a rank alone has nobody to tell them."""

    def program(device: str) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        numbers, batches = places(kind, rank, size), 2 * size
        count = size * len(numbers)
        part = torch.ones(1, 8, WIDTH, device=device)
        hidden = part.clone().requires_grad_()
        here = torch.device(device, rank) if device == "cuda" else torch.device(device)
        torch.manual_seed(0)
        stages = [
            PipelineStage(
                Block().to(device),
                number,
                count,
                here,
                input_args=hidden if number else part,
                output_args=hidden,
                **gradients(part, number, count),
            )
            for number in numbers
        ]
        held: Any = stages[0] if len(stages) == 1 else stages
        schedule = kind(held, n_microbatches=batches, loss_fn=loss)
        whole = torch.ones(batches, 8, WIDTH, device=device)
        inputs = (whole,) if 0 in numbers else ()
        targets = {"target": whole, "losses": []} if count - 1 in numbers else {}
        for _ in range(STEPS):
            schedule.step(*inputs, **targets)

    return program


V_SCHEDULES = (ScheduleZBVZeroBubble, ScheduleDualPipeV) if IS_TOLD_GRADIENTS else ()
"""Before PyTorch 2.13 stages send to their neighbours first, the last rank of a V to itself: gloo
refuses that."""
SCHEDULES = (
    ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleLoopedBFS,
    ScheduleInterleavedZeroBubble, *V_SCHEDULES,
)  # fmt: skip
PIPELINES: dict[str, Program] = {kind.__name__: in_stages(kind) for kind in SCHEDULES}


def split(device: str) -> None:
    """`pipeline()` cuts a whole model by `torch.export`."""
    rank, size = dist.get_rank(), dist.get_world_size()
    here = torch.device(device, rank) if device == "cuda" else torch.device(device)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(size)))
    cuts = {str(number): SplitPoint.BEGINNING for number in range(1, size)}
    pipe = pipeline(model, mb_args=(torch.ones(1, 8, WIDTH),), split_spec=cuts)
    stage = pipe.build_stage(rank, here)
    stage.submod.to(here)
    schedule = ScheduleGPipe(stage, n_microbatches=2 * size, loss_fn=loss)
    whole = torch.ones(2 * size, 8, WIDTH, device=here)
    inputs = (whole,) if rank == 0 else ()
    targets = {"target": whole, "losses": []} if rank == size - 1 else {}
    schedule.step(*inputs, **targets)


PIPELINES["split"] = split
