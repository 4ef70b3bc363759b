"""`tally summary`: what a model costs, module by module, without a script."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.cli.chip_names import gpu_or_default
from torchtally.cli.destination import place_of
from torchtally.cli.output import OUTPUT, FilterOptions, PageOptions, write_report
from torchtally.errors import RemedyError, ScriptError, TallyError, UsageError
from torchtally.options import CHIP, FILE, Form, one_of, option, own, positive_count

NAME = "summary"
SUMMARY = "what a model costs: parameters, FLOPs, memory and time by module"

ALL = "all"
PACKAGE = os.path.dirname(__file__)
PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "pure-bf16", "as-is")
TREE_LEVELS = 3

EPILOG = """\
examples:
  tally summary model.py:Net --input 8x3x224x224
  tally summary 'package.models:GPT(layers=12)' --input 4x1024:int64
  tally summary llama/config.json --input 1x4096      a model of transformers
  tally summary gpt2                        one that tally plan --models lists
  tally summary resnet50 --input 64x3x224x224 --optimizer sgd         of timm
  tally summary vit_base_patch16_224 --eval --precision pure-bf16
  tally summary model.py:Net --input ids=4x512:int64 --input mask=4x512:bool
  tally summary model.py:Net --input 8x256 --depth all --json | jq .peak_allocated_bytes
  tally summary model.py:Net --input 8x256 -o net.tally; tally show net.tally --by op

The model is built, and takes a training step, on a simulated GPU: a model that
is larger than this machine's memory works, too. A class or function is
called without arguments, or with those in parentheses after it. An input is a
shape and a dtype; without a dtype it is of floats, or of int64 for a model of
transformers that reads tokens. What the model's code writes to files is deleted.
"""


def depth(text: str) -> int | None:
    """Levels of the tree; None for all of them."""
    return None if text == ALL else 0 if text == "0" else positive_count(text)


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(FilterOptions, PageOptions):
    """What one training step of a model costs on a GPU: its tree of modules with parameters,
    FLOPs forward and backward, bytes saved for backward and time; peak memory.
    """

    model: str = own(
        "MODEL",
        "package.module:Class or file.py:Class, a config.json of transformers, a name of `tally "
        "plan --models`, or one of timm",
        Form("MODEL"),
    )
    inputs: tuple[str, ...] = own(
        "--input",
        "an input by shape and dtype: 4x512:int64, 8x3x224x224; several in their order, or by name "
        "(repeatable)",
        Form("[NAME=]SHAPE"),
        is_repeated=True,
    )
    optimizer: str = own(
        "--optimizer",
        "one of torch.optim in lower case, or none (default adamw)",
        Form("NAME"),
        default="adamw",
    )
    precision: str = own(
        "--precision",
        f"{', '.join(PRECISIONS)} (default bf16: float32 weights, autocast)",
        Form("NAME", one_of(lambda: PRECISIONS)),
        default="bf16",
    )
    gpu: str | None = own("--gpu", "the chip, as `tally gpus` lists it", CHIP)
    trains: bool = own("--eval", "a forward pass alone, in evaluation mode", turns_off=True)
    depth: int | None = own(
        "--depth",
        f"levels of the tree, or {ALL} (default {TREE_LEVELS})",
        Form("N", depth),
        default=TREE_LEVELS,
    )
    output: str | None = option(
        "-o",
        OUTPUT,
        "write the step's trace, for tally show and others",
        FILE,
        alias="--output",
        is_written=True,
    )


def command(options: SummaryOptions) -> int:
    """Build the model, run a step and report. Raises UsageError for what cannot be run."""
    positional, named = inputs_of(options.inputs)
    from torchtally.models.sources import model_source
    from torchtally.models.summary import summary
    from torchtally.report.model import model_report

    trace_place = place_of(options.output, "-o")
    gpu = gpu_or_default(options.gpu)
    source = model_source(options.model)
    in_order, by_name = source.fill(positional, named, is_training=options.trains)
    try:
        model_summary = summary(
            source.build,
            *in_order,
            optimizer=None if options.optimizer == "none" else options.optimizer,
            precision=options.precision,
            gpu=gpu,
            training=options.trains,
            named_inputs=by_name,
        )
    except RemedyError as error:
        raise UsageError(error.by_option) from error
    except TallyError:
        raise
    except Exception as error:
        raise ScriptError(complaint(options.model, error)) from error
    if trace_place is not None:
        model_summary.ledger.trace.save(trace_place)
    write_report(
        model_report(
            model_summary, depth=options.depth, columns=options.columns, filters=options.filter
        ),
        options,
    )
    return 0


def inputs_of(texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Inputs in order, and inputs by name. Raises UsageError for a name that is given twice."""
    positional: list[str] = []
    named: dict[str, str] = {}
    for text in texts:
        name, equals, spec = text.rpartition("=")
        if name in named:
            raise UsageError(f"--input {name} is given twice.")
        if equals:
            named[name] = spec
        else:
            positional.append(spec)
    return positional, named


def complaint(model: str, error: Exception) -> str:
    """What the model raised, and the innermost line of it that is not a library's."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_of_library(frame.filename)]
    frame = (own or frames)[-1]
    message = str(error).strip() or "no message"
    return (
        f"{model}: {type(error).__name__}: {message[:1000]}\n"
        f"Raised at {frame.filename}:{frame.lineno}. Does --input match what the model expects?"
    )


def is_of_library(file: str) -> bool:
    """Installed code, or ours."""
    import sysconfig

    places = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), os.path.dirname(PACKAGE))
    return file.startswith(("<", *places))
