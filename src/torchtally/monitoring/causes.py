"""What may be the reason that a training is not as predicted: first what this process shows."""

import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from torchtally import torch_private as private
from torchtally.monitoring.comparison import Parting

Clue = Callable[[nn.Module | None], bool]


def is_compiled(model: nn.Module | None) -> bool:
    return model is not None and any(map(private.is_compiled_module, model.modules()))


def has_other_ranks(model: nn.Module | None) -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


SEEN: Mapping[Parting, tuple[tuple[str, Clue], ...]] = {
    Parting.SLOWER: (
        ("CUDA_LAUNCH_BLOCKING is set", lambda _: os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"),
        ("anomaly detection is on", lambda _: torch.is_anomaly_enabled()),
        ("deterministic algorithms are enabled",
         lambda _: torch.are_deterministic_algorithms_enabled()),
        ("other ranks: only a trace of all ranks predicts communication",
         has_other_ranks),
    ),
    Parting.FASTER: (("torch.compile, which a prediction of the model leaves out", is_compiled),),
    Parting.MORE_MEMORY: (
        ("anomaly detection is on", lambda _: torch.is_anomaly_enabled()),
        ("other ranks: buffers of communication", has_other_ranks),
    ),
    Parting.LESS_MEMORY: (
        ("torch.compile, which a prediction of the model leaves out", is_compiled),
    ),
}  # fmt: skip
"""What can be asked; where it is so, it is named first."""

USUAL: Mapping[Parting, tuple[str, ...]] = {
    Parting.SLOWER: (
        "steps that wait for data", "a power or temperature limit", "another process on the GPU",
        "batches larger than the predicted one",
    ),
    Parting.FASTER: (
        "batches smaller than the predicted one",
        "a GPU faster than usual for its data sheet (tally bench calibrates)",
    ),
    Parting.MORE_MEMORY: (
        "tensors kept from step to step (a list of losses)", "larger batches than the predicted "
        "one", "an evaluation with gradients", "a loss outside the predicted model",
    ),
    Parting.LESS_MEMORY: (
        "smaller batches than the predicted one", "activation checkpointing that is not in the "
        "prediction",
    ),
}  # fmt: skip

NEXT: Mapping[Parting, str] = {
    Parting.SLOWER: "torchtally.record and `tally explain` show where the time goes.",
    Parting.FASTER: "",
    Parting.MORE_MEMORY: "torch.cuda.memory._dump_snapshot and `tally explain` show who holds it.",
    Parting.LESS_MEMORY: "",
}
"""Commands that find out."""


def likely_causes(kind: Parting, model: nn.Module | None) -> list[str]:
    """The most likely first."""
    return [text for text, is_so in SEEN[kind] if is_so(model)] + list(USUAL[kind])
