"""All-to-all exchanges of tokens whose numbers lie on the device, as mixtures send them to experts.

`symm_mem.all_to_all_vdev` and its forms for several experts a rank take the numbers of rows as a
tensor, and write those that came, with the offsets at which they lie. No host waits for them. What
others send is what this rank sends to them; with an imbalance declared, what it keeps for itself
(`collectives.assign_exchanged`). What comes back from experts is what was sent to them.
"""

from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.trace import Literal
from torchtally.virtual import values
from torchtally.virtual.dispatch import SPECIAL, Handler, VirtualDispatch
from torchtally.virtual.distributed.collectives import assign
from torchtally.virtual.facts import assumption_of, routing
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import virtual_of
from torchtally.virtual.value_keeper import has_value

NAMES = ("all_to_all_vdev", "all_to_all_vdev_2d", "all_to_all_vdev_2d_offset")


class Exchanges:
    """What was sent to experts, by the number of the group: it comes back."""

    def __init__(self) -> None:
        self.sent: dict[int, Tensor] = {}


def handler(name: str, exchanges: Exchanges) -> Handler:
    is_return = name.endswith("_offset")

    def run(mode: VirtualDispatch, call: Invocation) -> None:
        group = private.process_group(call.argument("group_name"))
        number, ranks = mode.groups.number(group), group.size()
        splits = call.argument("in_splits_offsets" if is_return else "in_splits")
        settings: list[tuple[str, Literal]] = [("group", number)]
        received = None
        if has_value(splits):
            rows = values.real_of(splits)
            assert rows is not None, "it has a value"
            rows = rows[0] if is_return else rows
            # By rank and expert: as sent to experts, or transposed on the way back.
            sent = rows.view(-1, ranks).T if is_return else rows.view(ranks, -1)
            if is_return:
                received = exchanges.sent.get(number, sent)
            else:
                is_uneven = routing.is_declared(assumption_of([virtual_of(splits)]))
                received = sent[group.rank()].expand_as(sent) if is_uneven else sent
                exchanges.sent[number] = sent.clone()
            settings += [
                ("input_split_sizes", tuple(sent.sum(1).tolist())),
                ("output_split_sizes", tuple(received.sum(1).tolist())),
            ]
        call.settings = tuple(settings)
        mode.notify(call, (), call.home)
        assign(call.argument("out"), None)
        target = call.argument("out_splits_offsets")
        if received is None:
            assign(target, None)
            return
        align = call.argument("major_align") if name == "all_to_all_vdev_2d" else None
        came = received if is_return else received.T
        assign(target, with_offsets(came.contiguous(), align or 1).to(target.dtype))

    return run


def with_offsets(rows: Tensor, align: int) -> Tensor:
    """(2, n): numbers of rows, and where each begins; every line of `rows` begins aligned."""
    lines = rows.sum(1)
    room = (lines + align - 1) // align * align
    starts = room.cumsum(0) - room
    within = rows.cumsum(1) - rows
    return torch.stack([rows.flatten(), (starts[:, None] + within).flatten()])


def register(exchanges: Any = None) -> None:
    """Enter the handlers; each session has its own exchanges."""
    exchanges = Exchanges() if exchanges is None else exchanges
    for name in NAMES:
        if hasattr(torch.ops.symm_mem, name):
            SPECIAL[getattr(torch.ops.symm_mem, name).default] = handler(name, exchanges)
