"""What may be the reason that a training is not as predicted: first what this process shows."""

import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from torchtally import torch_private as private
from torchtally.live.comparison import Deviation

Clue = Callable[[nn.Module | None], bool]


def is_compiled(model: nn.Module | None) -> bool:
    return model is not None and any(map(private.is_compiled_module, model.modules()))


def has_other_ranks(model: nn.Module | None) -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def detects_anomalies(model: nn.Module | None) -> bool:
    return torch.is_anomaly_enabled()


CAUSES: Mapping[Deviation, tuple[tuple[str, Clue] | str, ...]] = {
    Deviation.SLOWER: (
        ("CUDA_LAUNCH_BLOCKING is set", lambda _: os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"),
        ("anomaly detection is on", detects_anomalies),
        (
            "deterministic algorithms are enabled",
            lambda _: torch.are_deterministic_algorithms_enabled(),
        ),
        ("other ranks: only a trace of all ranks predicts communication", has_other_ranks),
        "steps that wait for data",
        "a power or temperature limit",
        "another process on the GPU",
        "batches larger than the predicted one",
    ),
    Deviation.FASTER: (
        ("torch.compile, which a prediction of the model leaves out", is_compiled),
        "batches smaller than the predicted one",
        "a GPU faster than usual for its data sheet (tally bench calibrates)",
    ),
    Deviation.MORE_MEMORY: (
        ("anomaly detection is on", detects_anomalies),
        ("other ranks: buffers of communication", has_other_ranks),
        "tensors kept from step to step (a list of losses)",
        "larger batches than the predicted one",
        "an evaluation with gradients",
        "a loss outside the predicted model",
    ),
    Deviation.LESS_MEMORY: (
        ("torch.compile, which a prediction of the model leaves out", is_compiled),
        "smaller batches than the predicted one",
        "activation checkpointing that is not in the prediction",
    ),
}
"""The most likely first; one with a question only where its answer is yes."""

NEXT: Mapping[Deviation, str] = {
    Deviation.SLOWER: "torchtally.record and `tally explain` show where the time goes.",
    Deviation.MORE_MEMORY: "torch.cuda.memory._dump_snapshot and `tally explain` show its holders.",
}
"""Commands that find out."""


def likely_causes(kind: Deviation, model: nn.Module | None) -> list[str]:
    """The most likely first."""
    causes = ((cause, None) if isinstance(cause, str) else cause for cause in CAUSES[kind])
    return [text for text, is_so in causes if is_so is None or is_so(model)]


def advice(kind: Deviation, model: nn.Module | None) -> str:
    """Lines below a warning: what may be the reason, and what finds out."""
    text = f"  Likely causes: {'; '.join(likely_causes(kind, model))}."
    return f"{text}\n  {NEXT[kind]}" if kind in NEXT else text
