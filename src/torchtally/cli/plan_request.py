"""The model and the chips that the options of `tally plan` name, looked up."""

import os
import sys
from dataclasses import replace
from importlib.util import find_spec

from torchtally.chips import Chip, Cluster, chip, cluster
from torchtally.chips.chip import Link, Node
from torchtally.cli.chip_names import say_variants
from torchtally.cli.plan_questions import refuse_several
from torchtally.cli.plan_stack import assumed_stack, with_facts, with_recipe
from torchtally.cli.streams import say
from torchtally.errors import UnknownFamilyError, UsageError
from torchtally.options import options_of
from torchtally.plan.architecture.lookup import config_of, count_alone, is_file, model
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.prediction import with_prediction
from torchtally.plan.architecture.shapes import by_hand
from torchtally.plan.frameworks.configuration import Configuration, configuration
from torchtally.plan.questions import Request, Subject, counted_subject, subject
from torchtally.plan.questions.plan_options import SAMPLED
from torchtally.progress import StatusLine
from torchtally.units import parse_count

DEFAULT_CHIP = "H100-SXM"
"""Whose operators a class is counted by, where --gpus is not given."""
CONFIGURED = (".toml", ".json", ".yaml", ".yml", ".sh")
"""At the end of files that layouts are read of."""


def resolved(request: Request) -> Request:
    """The request with what its options name. Raises UsageError where they contradict."""
    refuse_several(request)
    request = with_recipe(request)
    request = replace(request, subject=_predicting(request, _subject(request)))
    configured = _configuration(request)
    if configured is not None:
        request = replace(
            request,
            layout=configured.words,
            global_batch=request.global_batch or configured.batch,
            sequence=request.sequence or configured.sequence,
        )
    request = with_facts(request, assumed_stack(request, configured))
    chips = cluster_of(request)
    if chips is None:
        return request
    return replace(request, cluster=chips, recipe=request.recipe.on(chips.chip))


def _configuration(request: Request) -> Configuration | None:
    """What the file that --layout names says; None for a layout in words."""
    path = request.layout
    if path is None or not (os.path.isfile(path) or path.lower().endswith(CONFIGURED)):
        return None
    model = None if request.subject is None else request.subject.model
    layout_file = configuration(path, None if model is None else model.layers)
    read = f"{path}, of {layout_file.framework}: {layout_file.words}"
    adapters = layout_file.adapters
    if adapters is not None and request.lora is None:
        raise UsageError(f"{path} trains adapters: add {' '.join(adapters.options)}, as it says.")
    batch = "" if layout_file.batch is None else f", steps of {layout_file.batch} sequences"
    say(f"tally: {read}{batch}")
    return layout_file


def cluster_of(request: Request) -> Cluster | None:
    """The chips that --gpus names, with what the user knows better of them than the table."""
    if request.gpus is None:
        options = options_of(type(request))
        needy = ("memory_bytes", "network", "peak_flop_per_s", "compare")
        unused = [options[field].name for field in needy if getattr(request, field) is not None]
        if unused:
            raise UsageError(f"{unused[0]} needs a chip: add --gpus H100-SXM.")
        return None
    say_variants([request.gpus])
    chips = cluster(request.gpus)
    chip = chips.chip
    if request.memory_bytes is not None:
        chip = chip.with_memory(request.memory_bytes)
    if request.network is not None:
        chip = with_network(replace(chips, chip=chip), *request.network)
    if request.peak_flop_per_s is not None:
        chip = chip.with_peak(request.recipe.on(chip).products, request.peak_flop_per_s)
    return replace(chips, chip=chip)


def with_network(chips: Cluster, cards: int | None, bit_per_s: float) -> Chip:
    """The chip, in nodes with so many cards of this speed; None: one for each chip."""
    chip, each = chips.chip, cards or chips.node_size
    if chips.is_one_node:
        raise UsageError(
            f"--network joins nodes, and {chips.count} {chip.name} are one: leave it out, or give "
            f"the nodes, --gpus 2x{chips.node_size}x{chip.name}."
        )
    name = f"{each} cards of {bit_per_s / 1e9:g} Gbit/s a node, as given"
    link = Link(name, bit_per_s * each / chips.node_size / 8)
    node = chip.node or Node(chips.node_size, "as given", "--network")
    return replace(chip, node=replace(node, network=link, network_cards=each))


SIZES = ("layers", "width", "heads", "kv_heads", "ffn", "vocabulary")


def _subject(request: Request) -> Subject | None:
    """What MODEL, --parameters or the sizes say; None where nothing does."""
    options = options_of(type(request))
    sizes = [field for field in SIZES if getattr(request, field) is not None][:1]
    fields = [field for field in ("model", "parameters") if getattr(request, field) is not None]
    sources = [options[field].name for field in (*fields, *sizes)]
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} both describe the model: give one of them.")
    if request.parameters is not None:
        return subject(request.parameters)
    if request.model is not None:
        return _subject_named(request, request.model)
    return subject(_decoder(request)) if sizes else None


def _predicting(request: Request, said: Subject | None) -> Subject | None:
    """Subject with the prediction modules of --mtp."""
    if request.mtp is None:
        return said
    if request.lora is not None or request.dpo or request.grpo:
        raise UsageError("--mtp: PEFT and TRL train no prediction modules; leave it out.")
    if said is None or said.model is None:
        raise UsageError(
            "--mtp needs the model's shape: give a name (deepseek-v3) or a config.json of a family "
            "with a closed form."
        )
    return subject(with_prediction(said.model, request.mtp))


def _subject_named(request: Request, name: str) -> Subject:
    """A model by its name or file; of a family without a row, or with images and sound, what its
    own class counts.
    """
    if SAMPLED.intersection(request.given) and is_file(name):
        return _counted_subject(request, name)
    try:
        return subject(_model_of(name))
    except UnknownFamilyError as unknown:
        if find_spec("transformers") is None:
            raise UnknownFamilyError(
                f"{unknown} Install transformers to count the model in its own class."
            ) from None
        from torchtally.models.counted import is_countable

        if not is_countable(str(config_of(name))):
            raise
        return _counted_subject(request, name)


def _counted_subject(request: Request, name: str) -> Subject:
    from torchtally.models.counted import count_model
    from torchtally.models.samples import ModelSample

    sample = ModelSample(
        batch=request.micro_batch or 1,
        sequence=request.sequence,
        source=request.source_sequence,
        images=request.images,
        audio_s=request.audio_s,
    )
    cluster = cluster_of(request)
    counted_on = chip(DEFAULT_CHIP) if cluster is None else cluster.chip
    with StatusLine(is_quiet=not sys.stderr.isatty()) as status:
        status.show("counting a step of its own class (fewer tokens: --sequence 64)", at_once=True)
        counted = count_model(str(config_of(name)), sample, request.recipe, counted_on)
    return counted_subject(counted)


def _model_of(text: str) -> Model | int:
    """A number of parameters, or a model by its name or file."""
    try:
        return parse_count(text)
    except UsageError:
        alone = count_alone(text)
        return model(text) if alone is None else alone


def _decoder(request: Request) -> Model:
    """A decoder of equal layers, from its sizes."""
    layers, width = request.layers, request.width
    heads, vocabulary = request.heads, request.vocabulary
    if layers is None or width is None or heads is None or vocabulary is None:
        needed = ("layers", "width", "heads", "vocabulary")
        missing = [f"--{name}" for name in needed if getattr(request, name) is None]
        raise UsageError(
            f"A model by its numbers needs {', '.join(missing)} too: give --layers, --width, "
            "--heads and --vocabulary."
        )
    return by_hand(
        layers=layers,
        width=width,
        heads=heads,
        vocabulary=vocabulary,
        is_tied=request.tied,
        kv_heads=request.kv_heads,
        feed_forward=request.ffn,
        is_gated=request.gated,
        context=request.sequence,
    )
