"""Bytes kept between the forward and the backward pass, tensor by tensor."""

from torchtally.plan.activations.kept import (
    Activations,
    activations,
    embedding_activation_bytes,
    head_activation_bytes,
    held_cast_bytes,
    layer_activation_bytes,
    layer_cast_bytes,
    layer_saved,
    working_activation_bytes,
)
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.pipeline import first_stage_activation_bytes
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import (
    AttentionKernel,
    Implementation,
    Options,
    Setting,
    setting_of,
)

__all__ = [
    "Activations",
    "AttentionKernel",
    "Implementation",
    "Options",
    "Region",
    "Saved",
    "Setting",
    "activations",
    "embedding_activation_bytes",
    "first_stage_activation_bytes",
    "head_activation_bytes",
    "held_cast_bytes",
    "layer_activation_bytes",
    "layer_cast_bytes",
    "layer_saved",
    "setting_of",
    "usual_kernel",
    "working_activation_bytes",
]
