"""The laws of `activations` and `deep_linear`, for the lawbook."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.plan.laws import Argument, Law, either, rises, whole
from tests.plan.models import models
from torchtally.plan import deep_linear
from torchtally.plan.activations import (
    attention,
    feed_forward,
    kept,
    kernel,
    operators,
    pipeline,
    saved,
    setting,
)
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import OPTIMIZERS
from torchtally.plan.recipes import RECIPES
from torchtally.units import Unit

MODELS = models()
BATCH, SEQUENCE = whole(1, 1 << 12), whole(1, 1 << 20)
RECIPE = either(st.sampled_from(list(RECIPES.values())))
CHIPS = either(st.sampled_from([1, 2, 4, 8]))
SIZE, LAYERS = whole(1, 1 << 16), whole(0, 1000)

MICRO_BATCH: dict[str, Argument] = {
    "batch": rises(BATCH),
    "sequence": rises(SEQUENCE),
    "recipe": RECIPE,
    "recompute": either(st.sampled_from(list(Recompute))),
    "kernel": either(st.sampled_from(list(setting.AttentionKernel))),
    "implementation": either(st.sampled_from(list(setting.Implementation))),
    "tensor": CHIPS,
    "is_sequence_parallel": either(st.booleans()),
    "context": CHIPS,
}


ACTIVATION_LAWS = [
    *(
        Law(function, Unit.BYTES, {"model": either(MODELS), **MICRO_BATCH})
        for function in (
            kept.embedding_activation_bytes,
            kept.head_activation_bytes,
            kept.working_activation_bytes,
        )
    ),
    Law(kept.activations, Unit.BYTES, {"model": either(MODELS), **MICRO_BATCH},
        lambda found: found.total),
    Law(
        kept.layer_activation_bytes,
        Unit.BYTES,
        {"kind": either(MODELS.map(lambda model: model.kinds[0])), "model": either(MODELS),
         **MICRO_BATCH},
    ),
    Law(
        kept.layer_cast_bytes,
        Unit.BYTES,
        {"kind": either(MODELS.map(lambda model: model.kinds[0])), "model": either(MODELS),
         "recipe": RECIPE},
    ),
    Law(kept.held_cast_bytes, Unit.BYTES, {"model": either(MODELS), "recipe": RECIPE}),
    Law(
        pipeline.first_stage_activation_bytes,
        Unit.BYTES,
        {"layer_bytes": rises(whole(0, 10**12)), "layers": rises(whole(1, 1000)),
         "stages": rises(whole(1, 64)), "chunks": either(whole(1, 16))},
    ),
    Law(
        deep_linear.deep_linear_parameters,
        Unit.PARAMETERS,
        {"width": rises(SIZE), "layers": rises(LAYERS)},
    ),
    Law(
        deep_linear.deep_linear_activation_bytes,
        Unit.BYTES,
        {"width": rises(SIZE), "layers": rises(LAYERS), "batch": rises(BATCH), "recipe": RECIPE},
    ),
    Law(
        deep_linear.deep_linear_flops,
        Unit.FLOPS,
        {"width": rises(SIZE), "layers": rises(LAYERS), "batch": rises(BATCH)},
        lambda found: found.total,
    ),
    Law(
        deep_linear.deep_linear_memory,
        Unit.BYTES,
        {"width": rises(SIZE), "layers": rises(LAYERS), "batch": rises(BATCH), "recipe": RECIPE,
         "optimizer": either(st.sampled_from(list(OPTIMIZERS.values())))},
        lambda found: found.total,
    ),
]  # fmt: skip

LISTS_OF_TENSORS: list[Callable[..., Any]] = [
    attention.attention_saved,
    attention.is_masked,
    kernel.usual_kernel,
    deep_linear.deep_linear_weights,
    feed_forward.experts_saved,
    feed_forward.feed_forward_saved,
    kept.embedding_saved,
    kept.head_saved,
    kept.layer_saved,
    operators.activated_bytes,
    operators.activated_saved,
    operators.dropout_saved,
    operators.norm_result_bytes,
    operators.norm_saved,
    operators.products_saved,
    saved.saved,
    saved.saved_bytes,
    setting.setting_of,
]
"""No formulas of their own: the tensors that the functions above add up."""
