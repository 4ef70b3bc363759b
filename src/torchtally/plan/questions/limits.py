"""What a model's positions and a chip's products do not allow, whatever is asked."""

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Model
from torchtally.plan.recipes import Recipe


def most_tokens(model: Model, otherwise: int) -> int:
    """The longest sequence that a model with learned positions takes; `otherwise` of others."""
    return (model.context or model.positions) if model.positions else otherwise


def check_positions(model: Model, tokens: int, option: str = "--sequence") -> None:
    """Raise UsageError for more tokens than a model has learned positions for."""
    most = most_tokens(model, tokens)
    if tokens > most:
        raise UsageError(
            f"{model.name} has learned {most} positions, fewer than {tokens} tokens: give "
            f"{option} {most} or less."
        )


def check_recipe(recipe: Recipe, chip: Chip) -> None:
    """Raise UsageError for scales of blocks that a GPU's products do not take."""
    if recipe.scaling.has_blocks and chip.is_torch_cuda and not chip.sm.has_block_scales:
        since = "Blackwell" if chip.is_cuda else "CDNA4 (MI350X)"
        raise UsageError(
            f"--recipe {recipe.name}: {chip.name} multiplies no blocks with scales of their own, "
            f"which chips since {since} do.\nChoose another: --recipe fp8."
        )
