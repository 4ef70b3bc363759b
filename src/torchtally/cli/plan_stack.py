"""The software that a training runs on: --stack, and the options that replace a fact of its."""

from dataclasses import replace

from torchtally.chips import cluster
from torchtally.cli.streams import say
from torchtally.errors import UsageError
from torchtally.options import options_of
from torchtally.plan.frameworks.configuration import Configuration
from torchtally.plan.questions import Answer, Request
from torchtally.plan.recipes import RECIPES, Recipe
from torchtally.plan.stacks.stack import OF_LAYOUTS, Software, stack

FACTS = ("implementation", "attention", "loss", "host", "gradients", "fp8_weights")
"""Fields that a fact of the stack decides where no option does; the recipe is taken first."""


IN_FLOAT16 = "mixed-fp16"
"""The recipe like the default one, of chips without products in bfloat16."""


def with_recipe(request: Request) -> Request:
    """The request with the recipe of --stack, where none is given, or one that its chip has."""
    if "recipe" in request.given or request.inference:
        return request
    name = None if request.stack_name is None else stack(request.stack_name).value("recipe")
    if name is None and request.gpus is not None and request.peak_flop_per_s is None:
        chip = cluster(request.gpus).chip
        if request.recipe.products not in chip.peaks and "float16" in chip.peaks:
            name = IN_FLOAT16
            say(
                f"tally: {chip.name} has no products in {request.recipe.products}: --recipe "
                f"{name}, float16 with scaled losses"
            )
    return request if name is None else replace(request, recipe=RECIPES[name])


def assumed_stack(request: Request, configured: Configuration | None) -> Software | None:
    """What the stack's table says of this model on these chips; None where neither --stack nor a
    configuration file names one. A file does not decide the recipe.
    """
    name = request.stack_name or (None if configured is None else configured.stack)
    if name is None:
        return None
    model = None if request.subject is None else request.subject.model
    known = stack(
        name,
        model="" if model is None else model.name,
        is_mixture=model is not None and model.is_mixture,
        chip="" if request.gpus is None else cluster(request.gpus).chip.name,
        recipe=request.recipe.name,
    )
    if configured is None:
        return known
    facts = dict(known.facts)
    if request.stack_name is None:
        facts.pop("recipe", None)
    return replace(known, facts=facts, said=configured.facts)


def with_facts(request: Request, software: Software | None) -> Request:
    """The request with the stack's facts where no option is given, and the recipe they make."""
    options = options_of(type(request))
    facts = {field: options[field].name.removeprefix("--") for field in FACTS}
    if software is not None:
        known = {
            field: options[field].value(software.value(fact))
            for field, fact in facts.items()
            if field not in request.given and software.value(fact) is not None
        }
        chosen = {facts[field] for field in FACTS if field in request.given}
        chosen |= {"recipe"} if "recipe" in request.given else set()
        chosen |= {f"overlap.{degree}" for degree in request.overlap or ()}
        overlap = software.overlap | dict(request.overlap or {})
        request = replace(
            request, **known, overlap=overlap, stack=software, chosen=frozenset(chosen)
        )
    return replace(request, recipe=_recipe(request))


def _recipe(request: Request) -> Recipe:
    """The recipe, with gradients and weights as options or the stack have them."""
    named = request.recipe
    if "fp8_weights" in request.given and not named.is_in_8_bits:
        raise UsageError(
            f"--fp8-weights needs a recipe in 8 bits, and {named.name} has {named.products} "
            "products: add --recipe fp8."
        )
    return replace(
        named,
        gradients=request.gradients or named.gradients,
        has_8_bit_weights=named.is_in_8_bits and request.fp8_weights,
    )


def with_stack(answer: Answer, request: Request) -> Answer:
    """The answer with the stack's facts before its other assumptions."""
    assert request.stack is not None
    unused = frozenset() if request.layout else frozenset(OF_LAYOUTS)
    facts = request.stack.in_words(request.chosen | unused)
    return replace(answer, assumptions=(facts, *answer.assumptions))
