"""The law of every public function of `napkin`. A new function's belongs here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.plan.activation_laws import ACTIVATION_LAWS, LISTS_OF_TENSORS
from tests.plan.laws import Law, either, falls, real, rises, whole
from tests.plan.models import models
from tests.plan.parallel.lawbook import NO_QUANTITY, PARALLEL_LAWS
from torchtally.plan import (
    capacity,
    flops,
    kv_cache,
    memory,
    optimizers,
    parameters,
    quantity,
    recipes,
    scaling,
    training,
)
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.quantity import of
from torchtally.units import Unit
from torchtally.work.convention import Attention

COUNT = whole(1, 10**12)
TOKENS = whole(1, 10**15)
PARAMETERS = whole(1, 10**14)
FLOPS = whole(1, 10**30)
PER_TOKEN = real(1, 1e15)
CHIPS = whole(1, 10**6)
RATE = real(1e9, 1e17)
SHARE = real(0.01, 1)
SECONDS = real(1e-3, 1e12)
HOURS = real(1e-3, 1e12)
USD = real(0.01, 1e12)
BYTES = whole(0, 10**18)
ITEM = st.sampled_from([1, 2, 4, 8])
SEQUENCE = whole(1, 1 << 20)
MODELS = models()
WEIGHTS = MODELS.map(weights_of)
ATTENTION = st.sampled_from(list(Attention))
RECOMPUTE = st.sampled_from(list(flops.Recompute))
RECIPES = st.sampled_from(list(recipes.RECIPES.values()))
OPTIMIZERS = st.sampled_from(list(optimizers.OPTIMIZERS.values()))
UNIFORM = OPTIMIZERS.filter(lambda optimizer: optimizer.moments is not None)


def _up_to(limit: int) -> Callable[[int], bool]:
    return lambda number: number <= limit


TRAINING = [
    Law(
        training.training_flops,
        Unit.FLOPS,
        {"parameters": rises(PARAMETERS), "tokens": rises(TOKENS)},
    ),
    Law(
        training.training_flops_of,
        Unit.FLOPS,
        {"flops_per_token": rises(PER_TOKEN), "tokens": rises(TOKENS)},
    ),
    Law(
        training.training_s,
        Unit.SECONDS,
        {
            "flops": rises(FLOPS),
            "chips": falls(CHIPS),
            "peak_flop_per_s": falls(RATE),
            "mfu": falls(SHARE),
        },
    ),
    Law(
        training.training_s_with_recompute,
        Unit.SECONDS,
        {
            "tokens": rises(TOKENS),
            "parameters": rises(PARAMETERS),
            "chips": falls(CHIPS),
            "reached_flop_per_s": falls(RATE),
        },
    ),
    Law(
        training.chips_needed,
        Unit.CHIPS,
        {
            "flops": rises(FLOPS),
            "seconds": falls(SECONDS),
            "peak_flop_per_s": falls(RATE),
            "mfu": falls(SHARE),
        },
    ),
    Law(
        training.flops_within,
        Unit.FLOPS,
        {
            "seconds": rises(SECONDS),
            "chips": rises(CHIPS),
            "peak_flop_per_s": rises(RATE),
            "mfu": rises(SHARE),
        },
    ),
    Law(
        training.tokens_for,
        Unit.TOKENS,
        {"flops": rises(FLOPS), "flops_per_token": falls(PER_TOKEN)},
    ),
    Law(
        training.mfu,
        Unit.FRACTION,
        {
            "tokens_per_s": rises(RATE),
            "flops_per_token": rises(PER_TOKEN),
            "chips": falls(CHIPS),
            "peak_flop_per_s": falls(RATE),
        },
    ),
    Law(
        training.mfu_of_training,
        Unit.FRACTION,
        {"flops": rises(FLOPS), "chip_hours": falls(HOURS), "peak_flop_per_s": falls(RATE)},
    ),
    Law(
        training.tokens_per_s,
        Unit.TOKEN_PER_S,
        {
            "flops_per_token": falls(PER_TOKEN),
            "chips": rises(CHIPS),
            "peak_flop_per_s": rises(RATE),
            "mfu": rises(SHARE),
        },
    ),
    Law(
        training.reached_flop_per_s,
        Unit.FLOP_PER_S,
        {
            "tokens_per_s": rises(RATE),
            "flops_per_token": rises(PER_TOKEN),
            "chips": falls(CHIPS),
        },
    ),
    Law(training.chip_hours, Unit.HOURS, {"chips": rises(CHIPS), "seconds": rises(SECONDS)}),
    Law(training.cost_usd, Unit.USD, {"chip_hours": rises(HOURS), "usd_per_hour": rises(USD)}),
    Law(
        training.chip_hours_for,
        Unit.HOURS,
        {"budget_usd": rises(USD), "usd_per_hour": falls(USD)},
    ),
    Law(
        training.energy_joules,
        Unit.JOULES,
        {"chip_hours": rises(HOURS), "chip_watts": rises(real(1, 3000))},
    ),
]

SIZES = [
    Law(
        parameters.parameters,
        Unit.PARAMETERS,
        {"model": either(MODELS)},
        lambda found: found.total,
    ),
    Law(
        parameters.group_parameters,
        Unit.PARAMETERS,
        {
            "group": either(st.sampled_from(list(parameters.Group))),
            "weights": either(WEIGHTS),
        },
    ),
    Law(
        parameters.decoder_parameters,
        Unit.PARAMETERS,
        {
            "layers": rises(whole(1, 1000)),
            "width": rises(whole(1, 10**6)),
            "vocabulary": rises(whole(1, 10**6)),
            "sequence": rises(SEQUENCE),
        },
    ),
    Law(
        flops.token_flops,
        Unit.FLOPS_PER_TOKEN,
        {
            "model": either(MODELS),
            "sequence": rises(SEQUENCE),
            "attention": either(ATTENTION),
            "recompute": either(RECOMPUTE),
        },
        lambda found: found.hardware,
    ),
    Law(flops.weight_flops, Unit.FLOPS_PER_TOKEN, {"model": either(MODELS)}),
    Law(flops.head_flops, Unit.FLOPS_PER_TOKEN, {"model": either(MODELS)}),
    Law(
        flops.attention_flops,
        Unit.FLOPS_PER_TOKEN,
        {
            "model": either(MODELS),
            "sequence": rises(SEQUENCE),
            "attention": either(ATTENTION),
        },
    ),
    Law(
        flops.layer_attention_flops,
        Unit.FLOPS_PER_TOKEN,
        {
            "layer": either(MODELS.map(lambda model: model.kinds[0])),
            "sequence": rises(SEQUENCE),
            "attention": either(ATTENTION),
        },
    ),
    Law(
        flops.keys_seen,
        Unit.NUMBER,
        {
            "sequence": rises(SEQUENCE),
            "window": rises(SEQUENCE),
            "attention": either(ATTENTION),
            "is_chunked": either(st.booleans()),
        },
    ),
    Law(
        flops.recompute_flops,
        Unit.FLOPS_PER_TOKEN,
        {
            "recompute": either(RECOMPUTE),
            "layers_flops": rises(PER_TOKEN),
            "attention_flops": rises(PER_TOKEN),
        },
    ),
    Law(
        kv_cache.kv_cache_bytes,
        Unit.BYTES,
        {
            "model": either(MODELS),
            "sequence": rises(SEQUENCE),
            "sequences": rises(whole(1, 4096)),
            "itemsize_bytes": rises(ITEM),
        },
    ),
    Law(
        kv_cache.layer_cache_bytes,
        Unit.BYTES,
        {
            "kind": either(MODELS.map(lambda model: model.kinds[0])),
            "sequence": rises(SEQUENCE),
            "sequences": rises(whole(1, 4096)),
            "itemsize_bytes": rises(ITEM),
        },
    ),
]

MEMORY = [
    Law(
        memory.states,
        Unit.BYTES,
        {
            "weights": either(WEIGHTS),
            "recipe": either(RECIPES),
            "optimizer": either(OPTIMIZERS),
        },
        lambda found: found.total,
    ),
    Law(
        memory.states_of_count,
        Unit.BYTES,
        {
            "parameters": rises(PARAMETERS),
            "recipe": either(RECIPES),
            "optimizer": either(UNIFORM),
        },
        lambda found: found.total,
    ),
    *(
        Law(
            function,
            Unit.BYTES,
            {"parameters": rises(PARAMETERS), "recipe": either(RECIPES)},
        )
        for function in (memory.parameter_bytes, memory.gradient_bytes, memory.master_bytes)
    ),
    Law(
        memory.bytes_per_parameter,
        Unit.BYTES_PER_PARAMETER,
        {"recipe": either(RECIPES), "optimizer": either(UNIFORM)},
    ),
    Law(
        memory.checkpoint_bytes,
        Unit.BYTES,
        {
            "states": either(
                st.builds(memory.states, WEIGHTS, RECIPES, OPTIMIZERS),
            )
        },
    ),
    Law(
        memory.token_data_bytes,
        Unit.BYTES,
        {"tokens": rises(TOKENS), "vocabulary": rises(whole(1, 10**6))},
    ),
    Law(
        optimizers.state_bytes,
        Unit.BYTES,
        {
            "optimizer": either(OPTIMIZERS),
            "weights": either(WEIGHTS),
            "itemsize_bytes": rises(ITEM),
        },
    ),
    Law(
        optimizers.uniform_state_bytes,
        Unit.BYTES,
        {
            "optimizer": either(UNIFORM),
            "parameters": rises(PARAMETERS),
            "itemsize_bytes": rises(ITEM),
        },
    ),
    Law(
        capacity.largest_parameters,
        Unit.PARAMETERS,
        {
            "memory_bytes": rises(BYTES),
            "bytes_per_parameter": falls(real(0.1, 100)),
            "other_bytes": falls(BYTES),
        },
    ),
    Law(
        capacity.largest,
        Unit.COUNT,
        {"fits": either(whole(0, 1 << 60).map(_up_to))},
        lambda found: of(found, Unit.COUNT),
    ),
]

SCALING = [
    Law(scaling.optimal_tokens, Unit.TOKENS, {"parameters": rises(PARAMETERS)}),
    Law(scaling.optimal_parameters, Unit.PARAMETERS, {"flops": rises(FLOPS)}),
    Law(
        scaling.loss,
        Unit.NUMBER,
        {
            "parameters": falls(PARAMETERS),
            "tokens": falls(TOKENS),
            "law": either(st.sampled_from(list(scaling.LOSS_LAWS.values()))),
        },
    ),
]

LAWS: list[Law] = [
    *TRAINING,
    *SIZES,
    *MEMORY,
    *SCALING,
    *ACTIVATION_LAWS,
    *(
        replace(parallel_law, examples=min(parallel_law.examples, 12))
        for parallel_law in PARALLEL_LAWS
    ),
]

LOOKED_UP: list[Callable[..., Any]] = [
    quantity.of,
    quantity.derived,
    quantity.total,
    recipes.recipe,
    optimizers.optimizer,
    *LISTS_OF_TENSORS,
    *NO_QUANTITY,
]
"""No formulas: what makes quantities (test_quantity.py), what is found by its name, lists of
tensors that functions with laws add up, and what layouts are made of."""
