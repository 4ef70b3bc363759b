"""Distributed checkpoints (`torch.distributed.checkpoint`): this rank plans for itself.

One rank collects what each will write or read, decides, and tells the others. Here the rank that is
there decides, of its own part: it writes its own file and the metadata of that, and a later load
finds both. What other ranks would have written is not there.
"""

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.stand_ins import StandIn

Mapped = Callable[[], Any]
Reduced = Callable[[list[Any]], Any]


def without_items(part: Any) -> Any:
    """The plan, or the list of written files, of a rank that has nothing to do."""
    if isinstance(part, list):
        return []
    if is_dataclass(part) and not isinstance(part, type) and hasattr(part, "items"):
        return replace(part, items=[])
    return part


def parts_of_ranks(wrapper: Any, part: Any) -> list[Any]:
    """One for each rank: this one's in its place, and nothing of the others."""
    parts = [without_items(part) for _ in range(wrapper.get_world_size())]
    parts[wrapper.get_rank()] = part
    return parts


def reduce_scatter(wrapper: Any, step: str, map_fun: Mapped, reduce_fun: Reduced) -> Any:
    part = attempt(wrapper, step, map_fun)
    wrapper.gather_object(part)
    results = attempt(wrapper, step, lambda: reduce_fun(parts_of_ranks(wrapper, part)))
    wrapper.scatter_object(results)
    return results[wrapper.get_rank()]


def all_reduce(wrapper: Any, step: str, map_fun: Mapped, reduce_fun: Reduced) -> Any:
    part = attempt(wrapper, step, map_fun)
    wrapper.gather_object(part)
    result = attempt(wrapper, step, lambda: reduce_fun(parts_of_ranks(wrapper, part)))
    return wrapper.broadcast_object(result)


def broadcast(wrapper: Any, step: str, map_fun: Mapped) -> Any:
    return wrapper.broadcast_object(attempt(wrapper, step, map_fun))


def attempt(wrapper: Any, step: str, function: Mapped) -> Any:
    """Result of an attempt whose failure all ranks are told, as torch does."""
    module = private.checkpoint_coordination()
    try:
        return function()
    except Exception as error:
        failures = {wrapper.get_rank(): private.wrapped_exception(error)}
        raise module.CheckpointException(step, failures) from error


def offload(native: Callable[..., Any]) -> Callable[..., Any]:
    """`StateDictStager._offload_tensor`: a copy on the host, of a storage's bytes by itself.

    torch makes a storage there first, of the full size, which is no copy between devices.
    """

    def offload_tensor(stager: Any, x: Tensor, memo: Any, non_blocking: bool = False) -> Any:
        if not private.is_meta(x) or type(x) not in private.PLAIN_TENSORS:
            return native(stager, x, memo, non_blocking)
        copy = memo[id(x)] = x.detach().to("cpu", non_blocking=non_blocking, copy=True)
        return copy

    return offload_tensor


def stand_ins() -> list[StandIn]:
    (stager, name), valid = private.checkpoint_stager(), private.valid_plan()
    coordination = private.checkpoint_coordination()
    wrapper = getattr(coordination, private.CHECKPOINT_RANKS)
    functions: dict[str, Callable[..., Any]] = {
        "reduce_scatter": reduce_scatter,
        "all_reduce": all_reduce,
        "broadcast": broadcast,
    }
    return [
        *(
            StandIn(wrapper, name, unless_alone(getattr(wrapper, name), function))
            for name, function in functions.items()
        ),
        # The parts of the ranks that are not there do not cover the tensors.
        StandIn(*private.checkpoint_validation(), lambda plans, metadata: valid),
        StandIn(stager, name, offload(getattr(stager, name))),
    ]


def unless_alone(native: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A checkpoint saved with `no_dist` has one rank."""

    def coordinated(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        return (function if wrapper.use_dist else native)(wrapper, *args, **kwargs)

    return coordinated
