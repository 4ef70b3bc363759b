"""What is this model made of, and what does training it take, on any chip?"""

from collections.abc import Iterator
from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.flops import token_flops
from torchtally.plan.kv_cache import kv_cache_bytes
from torchtally.plan.memory import States, checkpoint_bytes, states, states_of_count
from torchtally.plan.optimizers import OPTIMIZERS
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.plan_options import MODEL
from torchtally.plan.questions.request import Request, flops_per_token, sequence_of
from torchtally.plan.questions.uses import counted_fields, uses
from torchtally.plan.questions.words import subject_text
from torchtally.plan.recipes import RECIPES
from torchtally.plan.scaling import losses, optimal_tokens
from torchtally.plan.training import training_flops_of
from torchtally.table import Column, Table
from torchtally.units import Unit

SHOWN_RECIPES = ("fp32", "amp", "mixed", "megatron", "bf16")
SHOWN_OPTIMIZERS = ("sgd", "momentum", "adamw", "adamw-8bit", "adafactor", "lion", "muon")


@uses(MODEL, "recipe", "optimizer", counted_fields)
def model_card(request: Request) -> Answer:
    """Parameters by group, FLOPs of a token, states by recipe and optimizer, optimal tokens."""
    subject = request.of_subject
    state = states_of(request)
    per_token, counted = flops_per_token(request)
    tokens = optimal_tokens(subject.active)
    return Answer(
        question="model",
        headline=(
            f"{subject_text(request)}: ",
            state.total,
            f" to train with {request.optimizer.name} ({request.recipe.name}) before activations, ",
            per_token,
        ),
        figures=(
            subject.parameters,
            *((subject.active,) if subject.active is not subject.parameters else ()),
            per_token.with_name("training FLOPs"),
            state.total,
            checkpoint_bytes(state),
            *_cache(request),
            tokens,
            training_flops_of(per_token, tokens).with_name("compute-optimal training"),
            *losses(subject.active, tokens, "loss by then"),
        ),
        tables=tuple(_tables(request)),
        assumptions=(
            *counted,
            "Losses are estimates by published fits, in nats per token of those authors' data.",
        ),
        unknown=(
            *_left_out(request),
            "activations: they depend on the batch (--gpus CHIP --micro-batch 1 counts them)",
        ),
    )


def states_of(request: Request) -> States:
    """What is held for parameters from step to step, of the whole model."""
    subject = request.of_subject
    if subject.model is None:
        return states_of_count(subject.parameters, request.recipe, request.optimizer)
    return states(weights_of(subject.model), request.recipe, request.optimizer)


def _cache(request: Request) -> Iterator[Quantity]:
    length, _ = sequence_of(request)
    model = request.of_subject.model
    if model is not None and length is not None:
        yield kv_cache_bytes(model, length).with_name(f"KV cache of {length} tokens")


def _left_out(request: Request) -> tuple[str, ...]:
    model = request.of_subject.model
    return () if model is None else tuple(f"{part}: not counted" for part in model.left_out)


def _tables(request: Request) -> Iterator[Table]:
    if request.of_subject.model is not None:
        yield _groups(request)
        yield _token_flops(request)
    yield _states_table(request)


def _groups(request: Request) -> Table:
    """Parameters by what they are for."""
    size = parameters(request.of_model)
    whole = size.total.value
    return Table(
        title="Parameters",
        columns=(
            Column("group", "group", Unit.NAME),
            Column("parameters", "parameters", Unit.PARAMETERS),
            Column("parameters_share", "share", Unit.FRACTION),
            Column("weights", "which", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (group.name, group.value, group.value / whole, group.note)
            for group in sorted(size.groups, key=lambda group: -group.value)
        ),
        totals=(None, whole, 1.0, None),
    )


def _token_flops(request: Request) -> Table:
    """FLOPs of one token, by where they go."""
    length, _ = sequence_of(request)
    flops = token_flops(request.of_model, length or 0, attention=request.convention)
    scans = (flops.recurrence,) if flops.recurrence.value else ()
    parts = (flops.weights, flops.attention, *scans, flops.head)
    whole = flops.forward.value
    return Table(
        title=f"FLOPs of one token, forward, in a sequence of {length or 0}",
        columns=(
            Column("part", "part", Unit.NAME),
            Column("flops", "FLOPs", Unit.FLOPS),
            Column("flops_share", "share", Unit.FRACTION),
        ),
        rows=tuple((quantity.name, quantity.value, quantity.value / whole) for quantity in parts),
        totals=(None, whole, 1.0),
        note="The backward pass is twice that.",
    )


def _states_table(request: Request) -> Table:
    """What is held for parameters, by optimizer and recipe."""

    def total_bytes(recipe: str, optimizer: str) -> int | None:
        chosen = replace(request, recipe=RECIPES[recipe], optimizer=OPTIMIZERS[optimizer])
        try:
            return int(states_of(chosen).total.value)
        except UsageError:
            return None

    return Table(
        title="Parameters, gradients and optimizer state, by optimizer and recipe",
        columns=(
            Column("optimizer", "optimizer", Unit.NAME),
            *(Column(f"bytes_{recipe}", recipe, Unit.BYTES) for recipe in SHOWN_RECIPES),
        ),
        rows=tuple(
            (name, *(total_bytes(recipe, name) for recipe in SHOWN_RECIPES))
            for name in SHOWN_OPTIMIZERS
        ),
        totals=(None,) * (1 + len(SHOWN_RECIPES)),
        note="; ".join(f"{recipe}: {RECIPES[recipe].summary}" for recipe in SHOWN_RECIPES) + ".",
    )
