"""Python objects that ranks send each other: what this rank has stands for what it would get.

A receiver learns the size of an object first, which only the sender knows. So this rank takes the
sender's part: what it has in the list that it gave is what it is told, and the bytes are its own.
What the sender has is put in that list before: it is simulated, too, for its objects alone if need
be. So are those that send to this rank alone, shapes of a pipeline's stages.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.virtual.distributed.groups import ProcessGroups
from torchtally.virtual.stand_ins import StandIn


def as_sender(native: Callable[..., Any], groups: ProcessGroups) -> Callable[..., Any]:
    """`broadcast_object_list` from whichever rank."""

    def broadcast_object_list(
        object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        theirs = shared(groups, group, sender(group, src, group_src), object_list)
        if theirs is not None:
            object_list[:] = theirs
        # Not `dist.get_rank`, which FSDP's states are told another rank by (`states.py`).
        rank = private.distributed_module().get_rank()
        return native(object_list, rank, group, device, *args, **kwargs)

    return broadcast_object_list


def scatter_object_list(native: Callable[..., Any], groups: ProcessGroups) -> Callable[..., Any]:
    def scatter(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: Any = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> Any:
        given = scatter_object_input_list or [None] * dist.get_world_size(group)
        theirs = shared(groups, group, sender(group, src, group_src), given)
        return native(scatter_object_output_list, theirs or given, dist.get_rank(), group)

    return scatter


def sender(group: Any, src: int | None, group_src: int | None) -> int:
    """The global number of the rank that has the objects."""
    if group_src is None:
        return src or 0
    whole: Any = dist.group.WORLD
    return dist.get_global_rank(group or whole, group_src)


def shared(groups: ProcessGroups, group: Any, source: int, objects: list[Any]) -> Any:
    """What the sender has; None where that is not known, which the report says."""
    whole: Any = dist.group.WORLD
    if dist.get_rank(group) < 0:
        return None
    theirs = groups.messages and groups.messages.share(group or whole, source, objects)
    if theirs is None and source != private.distributed_module().get_rank():
        groups.note(f"objects of rank {source}, which is not simulated, are those of this rank")
    return theirs


def from_simulated(native: Callable[..., Any], groups: ProcessGroups) -> Any:
    """`recv_object_list`; raises UnsupportedError where the sender is not simulated."""

    def recv_object_list(
        object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        source = None if src is group_src is None else sender(group, src, group_src)
        if source is not None and not groups.seeks_help(source):
            raise UnsupportedError(
                f"rank {dist.get_rank()} receives Python objects (the shapes of a pipeline's "
                f"stages?) from rank {source}, which is not simulated: `tally run` of a file, not "
                "of stdin or a function, runs the ranks that send to each other."
            )
        return native(object_list, src, group, device, group_src, *args, **kwargs)

    return recv_object_list


def stand_ins(groups: ProcessGroups) -> list[StandIn]:
    module: Any = private.distributed_module()
    functions = {
        "recv_object_list": from_simulated(module.recv_object_list, groups),
        "broadcast_object_list": as_sender(module.broadcast_object_list, groups),
        "scatter_object_list": scatter_object_list(module.scatter_object_list, groups),
    }
    return [
        StandIn(owner, name, function)
        for owner in (module, dist)
        for name, function in functions.items()
    ]
