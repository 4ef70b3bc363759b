"""`tally summary`: what a model costs, module by module, without a script."""

import argparse
import os

from torchtally.cli.arguments import Subparsers
from torchtally.cli.chip_names import gpu_or_default
from torchtally.cli.destination import add_output, place_of
from torchtally.cli.output import add_columns, add_filter, add_format, write_report
from torchtally.errors import RemedyError, ScriptError, TallyError, UsageError
from torchtally.options import positive_count

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


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="What one training step of a model costs on a GPU: its tree of modules with\n"
        "parameters, FLOPs forward and backward, bytes saved for backward and time; peak memory.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="package.module:Class or file.py:Class, a config.json of transformers, a name of "
        "`tally plan --models`, or one of timm",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]SHAPE",
        help="an input by shape and dtype: 4x512:int64, 8x3x224x224; several in their order, or by "
        "name (repeatable)",
    )
    parser.add_argument(
        "--optimizer",
        default="adamw",
        metavar="NAME",
        help="one of torch.optim in lower case, or none (default adamw)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="bf16",
        metavar="NAME",
        help=f"{', '.join(PRECISIONS)} (default bf16: float32 weights, autocast)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="the chip, as `tally gpus` lists it")
    parser.add_argument(
        "--eval", action="store_true", help="a forward pass alone, in evaluation mode"
    )
    parser.add_argument(
        "--depth",
        type=depth,
        default=TREE_LEVELS,
        metavar="N",
        help=f"levels of the tree, or {ALL} (default {TREE_LEVELS})",
    )
    add_columns(parser)
    add_filter(parser)
    help = "write the step's trace, for tally show and others"
    add_output(parser, "-o", "--output", metavar="FILE", help=help)
    add_format(parser, has_html=True)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Build the model, run a step and report. Raises UsageError for what cannot be run."""
    positional, named = inputs_of(args.input)
    from torchtally.models.sources import model_source
    from torchtally.models.summary import summary
    from torchtally.report.model import model_report

    trace_place = place_of(args.output, "-o")
    gpu = gpu_or_default(args.gpu)
    source = model_source(args.model)
    in_order, by_name = source.fill(positional, named, is_training=not args.eval)
    try:
        model_summary = summary(
            source.build,
            *in_order,
            optimizer=None if args.optimizer == "none" else args.optimizer,
            precision=args.precision,
            gpu=gpu,
            training=not args.eval,
            named_inputs=by_name,
        )
    except RemedyError as error:
        raise UsageError(error.by_option) from error
    except TallyError:
        raise
    except Exception as error:
        raise ScriptError(complaint(args.model, error)) from error
    if trace_place is not None:
        model_summary.ledger.trace.save(trace_place)
    write_report(
        model_report(model_summary, depth=args.depth, columns=args.columns, filters=args.filter),
        args,
    )
    return 0


def inputs_of(texts: list[str]) -> tuple[list[str], dict[str, str]]:
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
