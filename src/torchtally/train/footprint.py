"""Measured memory: bytes of live tensors by category, on any device.

Each storage is counted once, however many tensors share it, without the allocator's rounding. Of
sharded weights only this rank's shard counts. `torchtally.plan` has the closed forms, a trace the
predictions.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from torchtally.checkpoints.shards import local_part, reshard
from torchtally.train.evaluation import cuda_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on the devices of the model."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    """Without step counters, with master weights."""
    activations_bytes: int = 0
    peak_allocated_bytes: int | None = None
    """`torch.cuda.max_memory_allocated`; None without CUDA."""

    def by_category(self) -> dict[str, int]:
        """Memory under the names of a plan's rows."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "optimizer state": self.optimizer_state_bytes,
            "activations": self.activations_bytes,
        }


def footprint(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, activations_bytes: int = 0
) -> Footprint:
    """What is held now: gradients after a backward pass, optimizer state after a first step.

    `activations_bytes` is passed on: `measured_activation_bytes` finds it.
    """
    parameters = list(model.parameters())
    devices = {parameter.device for parameter in parameters}
    state = list(_state_tensors(optimizer, devices)) if optimizer is not None else []
    cuda = [device for device in devices if device.type == "cuda"]
    peak = sum(torch.cuda.max_memory_allocated(device) for device in cuda) if cuda else None
    return Footprint(
        parameters_bytes=storage_bytes(parameters),
        gradients_bytes=storage_bytes(
            parameter.grad for parameter in parameters if parameter.grad is not None
        ),
        optimizer_state_bytes=storage_bytes(tensor for name, tensor in state if name != "step"),
        activations_bytes=activations_bytes,
        peak_allocated_bytes=peak,
    )


def measure_activation_bytes(
    forward: Callable[[], Tensor], model: nn.Module, inputs: Iterable[Tensor] = ()
) -> int:
    """Bytes that a forward pass saves for its backward pass; runs one and frees it.

    Counts storages saved by autograd, except parameters, buffers and `inputs`. Random states are
    restored. Known limit: tensors that a module keeps outside of autograd are not counted.
    """
    apart = [*model.parameters(), *model.buffers(), *inputs]
    with torch.random.fork_rng(devices=cuda_devices(apart)), record_saved_tensors() as saved:
        result = forward()
        kept = _storages(packed.tensor for packed in saved)
        # FSDP2 has replaced the parameters by gathered ones during the pass: not activations.
        others = _storages([*apart, *model.parameters()])
        size_bytes = sum(kept[key].nbytes() for key in kept.keys() - others.keys())
    del result
    reshard(model)
    return size_bytes


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, shared ones counted once."""
    return sum(storage.nbytes() for storage in _storages(tensors).values())


class _Saved:
    """One tensor saved in autograd's graph; dies with the node that saved it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def record_saved_tensors() -> Iterator["WeakSet[Any]"]:
    """Everything that autograd saves within the block, while it is saved; each has `.tensor`."""
    alive: WeakSet[Any] = WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        # detach: a node that saves its own result (exp, softmax) would otherwise form a cycle with
        # it through grad_fn, and never be freed (torch/autograd/graph.py, saved_tensors_hooks).
        saved = _Saved(tensor.detach())
        alive.add(saved)
        return saved

    def unpack(saved: _Saved) -> Tensor:
        return saved.tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield alive


def _storages(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    """The tensors' storages by identity: torch compares storages by value."""
    # torch preserves the Python object of an untyped storage while a reference exists.
    storages = [local_part(tensor).untyped_storage() for tensor in tensors]
    return {id(storage): storage for storage in storages}


def _state_tensors(
    optimizer: torch.optim.Optimizer, devices: set[torch.device]
) -> Iterator[tuple[str, Tensor]]:
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.device in devices:
                yield name, value
