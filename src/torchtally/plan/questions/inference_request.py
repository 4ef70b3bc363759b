"""What a question about inference asks besides the model and the chips, and what serves it."""

from math import gcd

from torchtally.chips import Cluster
from torchtally.errors import UsageError
from torchtally.plan.architecture.lookup import model as model_of
from torchtally.plan.architecture.model import Model
from torchtally.plan.inference.draft import Draft
from torchtally.plan.inference.engines import ENGINES, Engine, at_best
from torchtally.plan.inference.formats import WEIGHT_FORMATS, WeightFormat
from torchtally.plan.inference.forward import Generator
from torchtally.plan.inference.placement import Placement
from torchtally.plan.kv_cache import Cache
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.plan.parallel.pace import BEST
from torchtally.plan.questions.limits import check_positions, most_tokens
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.workload import shape_of

USUAL_PROMPT, USUAL_OUTPUT = 1024, 256
"""Tokens of a prompt and of what is written, where neither is given."""
USUAL_GUESSES = 4
OF_DTYPES = {"float32": "fp32", "float16": "fp16"}
"""Formats of checkpoints; all others are taken in bfloat16."""


def lengths(request: Request, model: Model) -> tuple[int, int]:
    """(prompt, output): two of prompt, output and context say the third.

    Raises UsageError where they contradict each other, or the model has fewer positions.
    """
    prompt, output, context = request.prompt, request.generate, request.sequence
    usual = USUAL_PROMPT + USUAL_OUTPUT
    if context is None and prompt is None and output is None:
        context = min(usual, most_tokens(model, usual))
    if context is None:
        prompt, output = prompt or USUAL_PROMPT, output or USUAL_OUTPUT
        check_positions(model, prompt + output, "--context")
        return prompt, output
    check_positions(model, context, "--context")
    if prompt is not None and output is not None and prompt + output != context:
        raise UsageError(
            f"--prompt {prompt} and --generate {output} are {prompt + output} tokens, not the "
            f"{context} of --context: give two of the three."
        )
    if prompt is None:
        output = output or min(USUAL_OUTPUT, max(1, context // 2))
        prompt = context - output
    output = context - prompt
    if prompt < 1 or output < 1:
        raise UsageError(
            f"--context {context} leaves no token for the prompt or the answer: give at least "
            "one more than --prompt or --generate."
        )
    return prompt, output


def format_of(request: Request, model: Model) -> WeightFormat:
    """Format as asked, or as the checkpoint has it."""
    return request.weights or WEIGHT_FORMATS[OF_DTYPES.get(model.dtype or "", "bf16")]


def engine_of(request: Request) -> Engine:
    """Software that serves, as asked; else one like vLLM."""
    return request.engine or ENGINES["serving"]


def cache_of(request: Request) -> Cache:
    """Keys and values as the engine keeps them."""
    engine = engine_of(request)
    return Cache(engine.cache, request.kv_block or engine.block, request.kv_cache)


def generator_of(request: Request) -> Generator:
    """Raises UsageError where the layout does not divide the model or fill the chips."""
    model, _ = shape_of(request)
    cluster, engine = request.of_cluster, engine_of(request)
    placement = placement_of(request, model)
    placement.check(model, cluster)
    if engine.is_of_one_chip and placement.tensor > 1:
        raise UsageError(
            f"--engine {engine.name} is planned on one chip, or on replicas: give one in "
            f"--gpus, or --layout 'dp {cluster.count}'."
        )
    who = at_best(engine) if request.pace is BEST else engine
    return Generator(model, cluster, placement, format_of(request, model), cache_of(request), who)


def placement_of(request: Request, model: Model) -> Placement:
    """Placement as --layout gives, or every node a replica, as far as its chips divide the
    heads.
    """
    cluster = request.of_cluster
    if not request.layout:
        return usual_placement(model, cluster)
    layout = parse_layout(request.layout, cluster.count, None, Layout())
    if (layout.pipeline, layout.context, layout.micro_batches) != (1, 1, 1):
        raise UsageError(
            f"--layout {request.layout!r}: inference is planned with tp, dp and ep; pipelines and "
            "context parallelism are not."
        )
    return Placement(layout.tensor, layout.data, layout.expert)


def usual_placement(model: Model, cluster: Cluster) -> Placement:
    together = min(cluster.node_size, cluster.count)
    tensor = gcd(together, *(heads for kind in model.kinds for heads in kind.split))
    while cluster.count % tensor:
        tensor -= 1
    return Placement(tensor, cluster.count // tensor)


def draft_of(request: Request, generator: Generator) -> Draft | None:
    """The guesser on the same chips, in the same formats; or the model's prediction modules."""
    modules = generator.model.predicting
    if request.draft is None and modules:
        return Draft(generator, request.guesses or modules, request.acceptance, is_own=True)
    if request.draft is None:
        return None
    model, placement = model_of(request.draft), generator.placement
    heads = [heads for kind in model.kinds for heads in kind.split]
    tensor = gcd(placement.tensor, *heads)
    if tensor != placement.tensor:
        raise UsageError(
            f"--draft {model.name}: its {heads[0]} heads do not divide among {placement.tensor} "
            "chips; give a --layout with fewer chips in a replica."
        )
    small = Generator(
        model,
        generator.cluster,
        Placement(placement.tensor, placement.replicas),
        format_of(request, model),
        generator.cache,
        generator.engine,
    )
    return Draft(small, request.guesses or USUAL_GUESSES, request.acceptance)
