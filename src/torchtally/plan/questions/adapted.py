"""A training of adapters as it is asked for: their matrices, and how frozen weights are kept."""

from dataclasses import dataclass

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

    @property
    def is_quantised(self) -> bool:
        return self.base.name not in ("bf16", "fp16", "fp32")


def plan_of(request: Request) -> FineTuning:
    """Raises UsageError for a model without a shape, and where adapters are not known."""
    assert request.lora is not None  # asked by it
    model = request.of_model
    if request.recipe.products == "float8_e4m3fn":
        raise UsageError(
            f"--recipe {request.recipe.name}: adapters are counted in bf16, fp32 and amp only."
        )
    is_wide = request.recipe.weights == "float32"
    base = request.weights or weight_format("fp32" if is_wide else "bf16")
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


def activation_recipe(plan: FineTuning) -> Recipe:
    """Recipe in which the model computes. Autocast leaves what flows between weights of 16 bits in
    16.
    """
    if plan.base.name == "fp32":
        return plan.recipe if plan.adapter.is_autocast else recipe("fp32")
    return recipe("bf16")
