"""The questions that closed forms answer at once, over numbers that a reader may change.

A `Napkin` is cards of quantities whose leaves are its inputs. A page computes the same formulas
again for other inputs (`report/browser/napkin.py`), so their structure must not depend on the
inputs' values: what depends on a choice has a variant for each of its options.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isnan, nan

from torchtally.chips import Chip, known_chips
from torchtally.chips.power import mean_power_watts
from torchtally.errors import UsageError
from torchtally.plan.architecture.known import known_models
from torchtally.plan.architecture.model import Model
from torchtally.plan.capacity import largest_parameters
from torchtally.plan.closed_form import Bytes, BytesPerParameter, Chips, Number, closed_form
from torchtally.plan.deep_linear import (
    deep_linear_activation_bytes,
    deep_linear_flops,
    deep_linear_parameters,
)
from torchtally.plan.flops import token_flops
from torchtally.plan.kv_cache import kv_cache_bytes
from torchtally.plan.memory import checkpoint_bytes, states_of_sizes
from torchtally.plan.optimizers import OPTIMIZERS, moments_bytes
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity, total
from torchtally.plan.questions.request import Request
from torchtally.plan.recipes import RECIPES
from torchtally.plan.scaling import losses, optimal_parameters, optimal_tokens
from torchtally.plan.training import (
    chip_hours,
    cost_usd,
    energy_joules,
    mfu,
    six_flops_per_token,
    tokens_per_s,
    training_flops_of,
    training_s,
)
from torchtally.units import Unit

BY_SIZE = "by its size alone"
"""Of the choice of models: any number of parameters."""
LONGEST = 1 << 24
"""Tokens: longer than every window, so that formulas say what a window leaves out."""


@dataclass(frozen=True, slots=True)
class Input:
    """A number that a reader may change."""

    word: str
    """In links: "parameters"."""
    quantity: Quantity
    """With its name, by which formulas know it, and the value it begins with."""
    least: float
    most: float
    is_logarithmic: bool
    group: str
    is_known: bool
    """False: the chip's price or power is not in the table; the quantity's value means nothing."""


@dataclass(frozen=True, slots=True)
class InputChoice:
    """One of several things, each of which sets inputs."""

    word: str
    title: str
    options: Mapping[str, Mapping[str, float]]
    """By name: values of inputs, by their words."""
    chosen: str


@dataclass(frozen=True, slots=True)
class Card:
    """A question and the figures that answer it."""

    title: str
    figures: tuple[Quantity, ...]
    """The first is the answer."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class FormulaByChoice:
    """A quantity that has a formula of its own for options of a choice."""

    of: Quantity
    choice: str
    by_option: Mapping[str, Quantity]
    is_known_otherwise: bool = True
    """False: without one of these options it is unknown."""


@dataclass(frozen=True, slots=True)
class Napkin:
    """All of it."""

    inputs: tuple[Input, ...]
    choices: tuple[InputChoice, ...]
    cards: tuple[Card, ...]
    variants: tuple[FormulaByChoice, ...]

    def input_of(self, quantity: Quantity) -> str | None:
        """The word of the input that a given quantity is; None for a constant. The LONGEST sequence
        stands for the input: formulas of models take it as a plain number.
        """
        if quantity.unit is Unit.TOKENS and quantity.value == LONGEST:
            return "sequence"
        return next((row.word for row in self.inputs if row.quantity is quantity), None)


STARTS: Mapping[str, float] = {
    "parameters": 70e9, "active": 70e9, "tokens": 15e12, "chips": 1024, "mfu": 0.5,
    "sequence": 8192, "sequences": 1, "speed": 1.2e6, "flops": 6.3e24,
    "width": 4, "depth": 2, "batch": 2,
}  # fmt: skip
"""The lecture's: 70B on 15T with 1,024 H100 at half their peak."""
CHIP, RECIPE, OPTIMIZER = "H100-SXM", "mixed", "adamw"


def napkin(
    values: Mapping[str, float] | None = None,
    *,
    model: str = BY_SIZE,
    chip: str = CHIP,
    recipe: str = RECIPE,
    optimizer: str = OPTIMIZER,
    models: Mapping[str, Model] | None = None,
) -> Napkin:
    """The napkin, with these values in place of those that it begins with.

    Raises UsageError for a chip without a known peak.
    """
    models = models_by_name() if models is None else models
    choices = choices_of(models, model, chip, recipe, optimizer)
    start = dict(STARTS)
    for choice in choices:
        start |= choice.options[choice.chosen]
    inputs = {row.word: row for row in inputs_of(start | dict(values or {}))}
    per_token = six_flops_per_token(inputs["active"].quantity)
    cache = Quantity("KV cache", 0, Unit.BYTES, note="it depends on the model's layers")
    given = {word: row.quantity for word, row in inputs.items()}
    return Napkin(
        inputs=tuple(inputs.values()),
        choices=choices,
        cards=tuple(cards_of(given, per_token, cache)),
        variants=(
            FormulaByChoice(per_token, "model", flops_by_model(models)),
            FormulaByChoice(
                cache, "model", cache_by_model(models, given["sequences"]), is_known_otherwise=False
            ),
        ),
    )


def napkin_of(request: Request) -> Napkin:
    """The napkin with what the request gives, and with its model among those known by name."""
    values: dict[str, float] = {}
    model, known = BY_SIZE, dict(models_by_name())
    if request.subject is not None:
        values = {
            "parameters": request.subject.parameters.value,
            "active": request.subject.active.value,
        }
        if request.subject.model is not None:
            model = request.subject.name or "yours"
            known.setdefault(model, request.subject.model)
    given = {
        "tokens": request.tokens,
        "mfu": request.mfu,
        "sequence": request.sequence,
        "sequences": request.global_batch or request.micro_batch,
        "speed": request.tokens_per_s,
        "flops": request.flops,
        "price": request.usd_per_hour,
    }
    values |= {word: value for word, value in given.items() if value is not None}
    chip = CHIP
    if request.cluster is not None:
        chip = request.cluster.chip.name
        values |= {"chips": request.cluster.count, "memory": request.chip.total_memory_bytes}
        values["peak"] = request.chip.peak(request.recipe.products).flop_per_s
    recipe, optimizer = request.recipe.name, request.optimizer.name
    if request.optimizer.moments is None:
        optimizer = OPTIMIZER  # its state depends on the tensors' shapes
    return napkin(values, model=model, chip=chip, recipe=recipe, optimizer=optimizer, models=known)


def choices_of(
    known: Mapping[str, Model], model: str, chip: str, recipe: str, optimizer: str
) -> tuple[InputChoice, ...]:
    models: dict[str, dict[str, float]] = {BY_SIZE: {}}
    models |= {name: sizes_of(each) for name, each in known.items()}
    chips = {each.name: facts_of(each) for each in known_chips() if dtype_of(each)}
    if chip not in chips:
        raise UsageError(f"{chip}: its peak in 16 bits is not in the table; try another chip.")
    recipes = {
        each.name: {
            "weight_bytes": each.weight_bytes,
            "gradient_bytes": each.gradient_bytes,
            "master_bytes": each.master_bytes,
            "state_bytes": each.state_bytes,
        }
        for each in RECIPES.values()
    }
    optimizers = {
        each.name: {"moments": each.moments}
        for each in OPTIMIZERS.values()
        if each.moments is not None
    }
    return (
        InputChoice("model", "model", models, model),
        InputChoice("chip", "chip", chips, chip),
        InputChoice("recipe", "number formats", recipes, recipe),
        InputChoice("optimizer", "optimizer", optimizers, optimizer),
    )


@lru_cache(maxsize=1)
def models_by_name() -> Mapping[str, Model]:
    return {row.name: row.model() for row in known_models()}


def sizes_of(model: Model) -> dict[str, float]:
    counted = parameters(model)
    return {"parameters": counted.total.value, "active": counted.active.value}


def dtype_of(chip: Chip) -> str:
    """Dtype of products in 16 bits; "" where the table has no peak of them."""
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in chip.peaks), "")


def facts_of(chip: Chip) -> dict[str, float]:
    """What the table has of a chip; what it lacks is nan, hence unknown."""
    price = nan if chip.price is None else chip.price.usd_per_hour
    watts = nan if chip.tdp_watts is None else mean_power_watts(chip.tdp_watts)
    return {
        "peak": chip.peak(dtype_of(chip)).flop_per_s,
        "memory": chip.total_memory_bytes,
        "price": price,
        "watts": watts,
    }


def flops_by_model(models: Mapping[str, Model]) -> Mapping[str, Quantity]:
    return {name: token_flops(model, LONGEST).model for name, model in models.items()}


def cache_by_model(models: Mapping[str, Model], sequences: Quantity) -> Mapping[str, Quantity]:
    return {name: kv_cache_bytes(model, LONGEST, sequences) for name, model in models.items()}


def inputs_of(start: Mapping[str, float]) -> Iterator[Input]:
    """All of them, in the order of the page."""
    rows = (
        ("parameters", "parameters", Unit.PARAMETERS, 1e6, 1e13, "model"),
        ("active", "active parameters", Unit.PARAMETERS, 1e6, 1e13, "model"),
        ("tokens", "tokens", Unit.TOKENS, 1e6, 1e15, "training"),
        ("sequence", "sequence", Unit.TOKENS, 1, LONGEST, "training"),
        ("sequences", "sequences", Unit.COUNT, 1, 65536, "training"),
        ("chips", "chips", Unit.CHIPS, 1, 1e6, "chips"),
        ("mfu", "MFU", Unit.FRACTION, 0.01, 1, "chips"),
        ("peak", "peak of a chip", Unit.FLOP_PER_S, 1e12, 1e17, "chips"),
        ("memory", "memory of a chip", Unit.BYTES, 1 << 30, 1 << 40, "chips"),
        ("price", "price of a chip", Unit.USD_PER_HOUR, 0.05, 50, "chips"),
        ("watts", "power of a chip", Unit.WATTS, 10, 3000, "chips"),
        ("weight_bytes", "bytes of a weight", BYTES_PER_PARAMETER, 0, 8, "states"),
        ("gradient_bytes", "bytes of a gradient", BYTES_PER_PARAMETER, 0, 8, "states"),
        ("master_bytes", "bytes of a master weight", BYTES_PER_PARAMETER, 0, 8, "states"),
        ("moments", "moments", Unit.NUMBER, 0, 3, "states"),
        ("state_bytes", "bytes of a moment", BYTES_PER_PARAMETER, 0, 8, "states"),
        ("speed", "observed tokens/s", Unit.TOKEN_PER_S, 1, 1e9, "observed"),
        ("flops", "compute to spend", Unit.FLOPS, 1e15, 1e28, "observed"),
        ("width", "width D", Unit.COUNT, 1, 65536, "deep linear model"),
        ("depth", "layers L", Unit.COUNT, 1, 1024, "deep linear model"),
        ("batch", "batch B", Unit.COUNT, 1, 1 << 20, "deep linear model"),
    )
    for word, name, unit, least, most, group in rows:
        is_known = not isnan(start[word])
        value = start[word] if is_known else 1.0
        number = round(value) if unit.is_whole else value
        is_logarithmic = least > 0 and word != "mfu"
        quantity = Quantity(name, number, unit)
        yield Input(word, quantity, least, most, is_logarithmic, group, is_known)


def cards_of(given: Mapping[str, Quantity], per_token: Quantity, cache: Quantity) -> Iterator[Card]:
    """`per_token` and `cache` have variants for models."""
    tokens, chips, peak = given["tokens"], given["chips"], given["peak"]
    flops = training_flops_of(per_token, tokens)
    seconds = training_s(flops, chips, peak, given["mfu"])
    hours = chip_hours(chips, seconds)
    yield Card(
        "How long does it train, at what cost?",
        (
            seconds,
            flops,
            tokens_per_s(per_token, chips, peak, given["mfu"]),
            hours,
            cost_usd(hours, given["price"]),
            energy_joules(hours, given["watts"]),
        ),
        "MFU is the share of the chips' dense peak in 16 bits that the model's own FLOPs make, "
        "usually 0.3 to 0.6. Restarts and evaluation are not counted.",
    )
    optimizer = moments_bytes(given["parameters"], given["moments"], given["state_bytes"])
    state = states_of_sizes(
        given["parameters"],
        given["weight_bytes"],
        given["gradient_bytes"],
        given["master_bytes"],
        optimizer,
    )
    each = bytes_of_states(
        given["weight_bytes"],
        given["gradient_bytes"],
        given["master_bytes"],
        given["moments"],
        given["state_bytes"],
    )
    everything = memory_of_chips(chips, given["memory"])
    yield Card(
        "What stays in memory from step to step?",
        (
            state.total,
            state.parameters,
            state.gradients,
            state.master,
            state.optimizer,
            share_of_chip(state.total, chips),
            checkpoint_bytes(state),
            largest_parameters(everything, each),
        ),
        "Activations are not included: they grow with the batch, and --gpus with --micro-batch "
        "counts them.",
    )
    yield Card(
        "What does a token cost?",
        (per_token, cache),
        "A model by its size: six FLOPs for each parameter. By its name: every product, and "
        "attention in full at this length of sequence. Keys and values in 16 bits.",
    )
    yield Card(
        "Which MFU is that?",
        (mfu(given["speed"], per_token, chips, peak),),
        "From an observed speed of all chips together.",
    )
    size = optimal_parameters(given["flops"])
    yield Card(
        "Which model uses this compute best?",
        (size, optimal_tokens(size), *losses(size, optimal_tokens(size))),
        "Rules of thumb and fits to other people's data; losses in nats per token of that data.",
    )
    P = deep_linear_parameters(given["width"], given["depth"])
    kept = deep_linear_activation_bytes(
        given["width"], given["depth"], given["batch"], RECIPES["fp32"]
    )
    linear = states_of_sizes(P, *FLOAT32, moments_bytes(P, 1, 4, OPTIMIZERS["adagrad"].source))
    work = deep_linear_flops(given["width"], given["depth"], given["batch"])
    yield Card(
        "The deep linear model of the lecture",
        (
            total("training", Unit.BYTES, {"states": linear.total, "activations": kept}),
            P,
            linear.total,
            kept,
            work.total,
            work.forward,
            work.backward,
        ),
        "L square matrices and a vector, float32 with AdaGrad: small enough to check by hand.",
    )


BYTES_PER_PARAMETER = Unit.BYTES_PER_PARAMETER
FLOAT32 = (4, 4, 0)
"""Bytes of a weight, of its gradient, of a master copy."""


@closed_form("bytes a parameter", BYTES_PER_PARAMETER)
def bytes_of_states(
    weight: BytesPerParameter,
    gradient: BytesPerParameter,
    master: BytesPerParameter,
    moments: Number,
    moment: BytesPerParameter,
) -> str:
    """Weight, gradient, master weight and the optimizer's moments."""
    return "weight + gradient + master + moments * moment"


@closed_form("memory of all chips", Unit.BYTES)
def memory_of_chips(chips: Chips, memory: Bytes) -> str:
    """Together, all of it usable."""
    return "chips * memory"


@closed_form("states on each chip, sharded", Unit.BYTES)
def share_of_chip(states: Bytes, chips: Chips) -> str:
    """Share of states that are spread over all chips (ZeRO 3, FSDP)."""
    return "ceil(states / chips)"
