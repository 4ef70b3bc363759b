"""Whether the host waits for the device when an operator is issued: copies, indices, values."""

from collections.abc import Sequence
from enum import Enum

from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import is_pinned


class HostWait(Enum):
    """What the host waits for."""

    DEVICE = "all earlier work of the device"
    TRANSFER = "a copy to the device from pageable memory"


def host_wait(call: Invocation, on_host: Sequence[bool], *, is_to_host: bool) -> HostWait | None:
    """What the host waits for in the operator's CUDA implementation; None if it does not wait.

    `on_host` holds, for each input, whether it is on the host; `is_to_host` is that of the results.
    """
    match call.operator.waits:
        case None:
            return HostWait.DEVICE if is_to_host else None
        case "copy":
            return copy_wait(call, on_host, is_to_host=is_to_host)
        case "index":
            # Host indices are copied to the device first, and not asynchronously
            # (`make_info` of native/TensorAdvancedIndexing.cpp).
            return HostWait.TRANSFER if any(on_host) else None
        case "value":
            # The size of the result is read back (native/cuda/Nonzero.cu), unless it is given.
            is_given = "output_size" in call.operator.arguments and (
                call.argument("output_size") is not None
            )
            return None if is_given else HostWait.DEVICE


def copy_wait(call: Invocation, on_host: Sequence[bool], *, is_to_host: bool) -> HostWait | None:
    """A copy waits for its stream unless it is asynchronous (native/cuda/Copy.cu).

    An asynchronous one to pageable memory waits as well: the driver's cudaMemcpyAsync returns when
    it is done.
    """
    is_asynchronous = call.argument("non_blocking")
    if call.operator.name != "aten._to_copy":
        is_to_host = on_host[0]  # copy_ writes to its first argument
    if is_to_host and not (is_asynchronous and ends_pinned(call)):
        return HostWait.DEVICE
    return HostWait.TRANSFER if any(on_host) and not is_asynchronous else None


def pins_result(call: Invocation) -> bool:
    """Whether PyTorch puts a host result into pinned memory.

    On request, and for an asynchronous copy (`_to_copy`, native/TensorConversions.cpp).
    """
    if call.kwargs.get("pin_memory"):
        return True
    return call.operator.name == "aten._to_copy" and bool(call.kwargs.get("non_blocking"))


def ends_pinned(call: Invocation) -> bool:
    """A copy to the host whose target is pinned: the result's, or the first argument's."""
    if call.operator.name == "aten._to_copy":
        return pins_result(call)
    return is_pinned(call.inputs[0])
