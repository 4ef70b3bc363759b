"""A training of adapters as it is asked for: their matrices, and how frozen weights are kept."""

from dataclasses import dataclass, replace

from torchtally.errors import UsageError
from torchtally.plan.adapters import Adapter, adapter_of
from torchtally.plan.architecture.model import Experts, Model
from torchtally.plan.inference.formats import WeightFormat, weight_format
from torchtally.plan.questions.request import Request
from torchtally.plan.recipes import Recipe, recipe


@dataclass(frozen=True, slots=True)
class FineTuning:
    """A training of adapters."""

    model: Model
    adapter: Adapter
    base: WeightFormat
    recipe: Recipe
    request: Request


def plan_of(request: Request) -> FineTuning:
    """Raises UsageError for a model without a shape, and where adapters are not known."""
    assert request.lora is not None  # asked by it
    model = request.of_model
    usual = usual_base(request.recipe)
    base = request.weights or weight_format(usual)
    if request.recipe.is_quantised and base.name != usual:
        raise UsageError(
            f"--recipe {request.recipe.name} with --weights {base.name}: frozen weights are "
            "counted in the format of products only.\n"
            f"Leave --weights out, or give --weights {usual}."
        )
    is_autocast = request.recipe.is_autocast
    if is_autocast and base.name != "fp32" and model.norm in ("layer", "unbiased"):
        raise UsageError(
            f"--recipe {request.recipe.name} with --weights {base.name}: layer norms are counted "
            "beside float32 weights only.\n"
            "Leave --weights out, or give --recipe bf16."
        )
    has_experts = any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    if is_autocast and base.name == "fp32" and has_experts:
        raise UsageError(
            f"--recipe {request.recipe.name}: experts in float32 are not counted beside adapters.\n"
            "Give --weights bf16, or --recipe bf16."
        )
    adapter = adapter_of(
        model,
        request.lora,
        request.lora_targets,
        request.lora_dropout,
        has_magnitude=request.dora,
        is_autocast=is_autocast,
    )
    return FineTuning(model, adapter, base, request.recipe, request)


def usual_base(recipe: Recipe) -> str:
    """The format of frozen weights where none is given. Quantised for products, they are not held
    in 16 bits beside (Transformer Engine, `quantized_model_init`).
    """
    if not recipe.is_quantised:
        return "fp32" if recipe.weights == "float32" else "bf16"
    if not recipe.is_in_8_bits:
        return "nvfp4"
    return "mxfp8" if recipe.scaling.has_blocks else "fp8-tensor"


def activation_recipe(plan: FineTuning) -> Recipe:
    """Recipe in which the model computes. Autocast leaves what flows between weights of 16 bits in
    16.
    """
    own = plan.recipe
    if own.is_quantised:
        plain = recipe("bf16")
        return replace(plain, name=own.name, products=own.products, scaling=own.scaling)
    if plan.base.name == "fp32":
        return plan.recipe if plan.adapter.is_autocast else recipe("fp32")
    return recipe("bf16")
