"""Collectives that are issued together, between a group's start and end of coalescing.

So are sends and receives in one list (`batch_isend_irecv`), where the backend says that it can.
"""

from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.trace import communicator_stream
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.distributed.work import VirtualWork
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.streams import current_stream_number


def stand_ins(mode: VirtualDispatch) -> list[StandIn]:
    """Once the script has a process group."""
    groups, names = mode.groups, private.coalescing_names()

    def start(group: Any, device: Any) -> None:
        groups.coalescing = mode.observer.clock

    def end(group: Any, device: Any) -> VirtualWork:
        first, until = groups.coalescing or 0, mode.observer.clock
        groups.coalescing = None
        arrivals, groups.arrivals = groups.arrivals, []
        mode.observer.collectives_coalesced(first)
        is_on_device = torch.device(device).type == "cuda"
        stream = communicator_stream(groups.number(group)) if is_on_device else None

        def wait() -> None:
            for arrive in arrivals:
                arrive()
            if stream is not None:
                mode.observer.stream_waited(current_stream_number(), stream, until)

        tensors, groups.coalesced = groups.coalesced, []
        work = VirtualWork(tensors, wait, is_blocking=stream is None)
        groups.begin(work)
        return work

    return [
        StandIn(*names["start"], start),
        StandIn(*names["end"], end),
        # Gloo's backend issues each by itself.
        StandIn(*names["is_supported"], property(groups.is_nccl)),
    ]
