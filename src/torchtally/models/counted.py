"""A configuration counted in the class of transformers or diffusers that it names."""

import re
from typing import Any

import torch
from torch import nn

from torchtally.chips import Chip
from torchtally.errors import TallyError, UsageError
from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.memory.occupancy import timeline
from torchtally.models.calls import UnknownCallError, call_of
from torchtally.models.inputs import Inputs
from torchtally.models.precision import StepPrecision, precision_of
from torchtally.models.samples import OPTIONS, ModelCall, ModelSample
from torchtally.models.sources import ModelSource, model_source
from torchtally.models.step import StepRequest
from torchtally.models.summary import summarise
from torchtally.plan.counted import CountedModel, CountedPart, CountedStep
from torchtally.plan.recipes import Recipe
from torchtally.timing.roofline import Roofline
from torchtally.views.model_summary import ModelSummary, ModuleNode

EXPERTS = re.compile(r"(^|\.)experts\.")
"""A module of experts among which a router chooses; shared ones have names of their own."""
COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "num_selected_experts",
    "moe_k",
    "top_k_experts",
    "moe_topk",
)
HELD = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
"""What recipe and optimizer decide, and a plan counts by formulas."""


def is_countable(path: str) -> bool:
    """Whether a library here has the class of the config.json."""
    try:
        model_source(path)
    except UsageError:
        return False
    return True


def count_model(path: str, sample: ModelSample, recipe: Recipe, chip: Chip) -> CountedModel:
    """The parameters of a config.json's own class, and a training step of it.

    The class is built without memory. Raises UsageError where its library is missing or refuses
    the file, for a sample that it does not take, and where a mixture of experts does not say how
    many of them a token meets.
    """
    source = model_source(path)
    with torch.device("meta"):
        model = source.build()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(sizes.values())
    in_experts = sum(size for name, size in sizes.items() if EXPERTS.search(name))
    idle = in_experts - _active(in_experts, model, path) if in_experts else 0
    library = type(model).__module__.partition(".")[0]
    name = type(model).__name__
    step, why_not = _step(source, model, sample, recipe, chip)
    return CountedModel(name, library, total, total - idle, step, why_not)


def _step(
    source: ModelSource, model: nn.Module, sample: ModelSample, recipe: Recipe, chip: Chip
) -> tuple[CountedStep | None, str]:
    """The step; else why there is none."""
    precision = precision_of(recipe)
    if precision is None:
        return None, f"products of recipe {recipe.name} are not counted operator by operator"
    try:
        call = call_of(model, sample)
    except UnknownCallError as error:
        return None, str(error)
    try:
        return _counted_step(source, call, sample.batch, precision, chip), ""
    except TallyError:
        raise
    except Exception as error:  # of the library's own code
        return None, f"the class raised {type(error).__name__}: {str(error).strip()[:300]}"


def _counted_step(
    source: ModelSource, call: ModelCall, samples: int, precision: StepPrecision, chip: Chip
) -> CountedStep:
    request = StepRequest(
        model=source.build,
        inputs=Inputs.of((), call.inputs),
        optimizer=None,
        precision=precision,
        is_training=True,
        loss=None,
    )
    summary = summarise(request, Roofline(chip))
    return CountedStep(
        samples=samples,
        tokens=call.tokens,
        sample=call.sample,
        options=", ".join(option for word, option in OPTIONS.items() if word in call.used),
        inputs=summary.inputs,
        flops_forward=summary.flops_forward,
        model_flops=summary.model_flops,
        bytes_saved=summary.bytes_saved,
        working_bytes=_working_bytes(summary.ledger),
        seconds=summary.step_s,
        parts=tuple(_parts(summary)),
    )


def _working_bytes(ledger: Ledger) -> int:
    """Most bytes held besides parameters, gradients and the optimizer's state."""
    memory = ledger.memory
    pairs = zip(memory.storages, memory.categories, strict=True)
    return timeline(storage for storage, category in pairs if category not in HELD).peak_bytes


def _parts(summary: ModelSummary) -> list[CountedPart]:
    """Towers, projectors, decoders: of a model that only wraps another, the other's own."""
    node = summary.root
    parts: list[CountedPart] = []
    prefix = ""
    while len(node.children) <= MOST_WRAPPED:
        inner = max(node.children, key=lambda child: child.parameters, default=None)
        if inner is None or not inner.children or inner.parameters < WRAPPED * node.parameters:
            break
        parts += [_part(child, prefix) for child in node.children if child is not inner]
        prefix += f"{inner.name}."
        node = inner
    parts += [_part(child, prefix) for child in node.children]
    listed = [part for part in parts if part.parameters]
    total = summary.ledger.total
    rest = CountedPart(
        "(itself)",
        summary.root.facts.class_name,
        summary.parameters - sum(part.parameters for part in listed),
        total.flops_forward - sum(part.flops_forward for part in listed),
        total.bytes_saved - sum(part.bytes_saved for part in listed),
    )
    return [*listed, rest] if rest.parameters or rest.flops_forward or rest.bytes_saved else listed


WRAPPED, MOST_WRAPPED = 0.8, 3
"""Of the parameters, in one of so few modules: it is the model, the others are heads."""


def _part(node: ModuleNode, prefix: str) -> CountedPart:
    return CountedPart(
        prefix + node.name,
        node.facts.class_name,
        node.parameters,
        node.total.flops_forward,
        node.total.bytes_saved,
    )


def _active(in_experts: int, model: nn.Module, path: str) -> int:
    """Active parameters of the experts: the share of them that a token meets."""
    config: Any = model.config
    config = config.get_text_config()
    experts, active = (_first(config, keys) for keys in (COUNT_KEYS, ACTIVE_KEYS))
    if experts is None or active is None:
        raise UsageError(
            f"{path}: a mixture of experts without its number of active experts per token.\n"
            "Give its active parameters instead: --parameters 3B."
        )
    return in_experts * active // experts


def _first(config: Any, keys: tuple[str, ...]) -> int | None:
    values = (getattr(config, key, None) for key in keys)
    return next((value for value in values if isinstance(value, int)), None)
