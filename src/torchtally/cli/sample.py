"""`tally sample`: text from a trained model."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers
from torchtally.cli.output import emit
from torchtally.options import positive_count

if TYPE_CHECKING:
    from torchtally.train.trained import Trained

NAME = "sample"
SUMMARY = "continue a text with a trained model"

EPILOG = """\
examples:
  tally sample runs/byte_gpt --prompt "def "
  tally sample runs/byte_gpt --prompt "def " --tokens 500 --temperature 0
  tally sample models/byte_gpt --prompt "import os" --json
  tally sample runs/byte_gpt --weights int4             with weights quantised to 4 bits
  tally sample runs/byte_gpt --weights all              what each costs, instead of a text

RUN is the folder of a run, or a model of transformers (`tally export`). The same
seed gives the same text on the same machine.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Print a prompt and its continuation by a model that was trained.",
        epilog=EPILOG,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or of a model")
    parser.add_argument("--prompt", default="\n", metavar="TEXT", help="default: a newline")
    parser.add_argument(
        "--tokens", type=positive_count, default=200, metavar="N", help="default 200"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 takes the most likely token; default 0.8",
    )
    parser.add_argument(
        "--top-k",
        type=positive_count,
        metavar="K",
        help="sample from the K most likely tokens only",
    )
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument(
        "--step",
        type=positive_count,
        metavar="N",
        help="the checkpoint to use; default: the newest",
    )
    parser.add_argument(
        "--weights",
        choices=("int8", "fp8", "int4", "all"),
        help=(
            "weights quantised by torchao; all: bytes, speed and loss of each, beside the original"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Print the text."""
    from torchtally.report.documents.training import ContinuationDocument
    from torchtally.report.keys import dumps, filled
    from torchtally.train.models.quantised import quantise
    from torchtally.train.trained import continue_text, load_trained

    trained = load_trained(args.run, args.step)
    if args.weights == "all":
        return compare(trained, args)
    if args.weights is not None:
        quantise(trained.model, args.weights)
    continuation = continue_text(
        trained,
        args.prompt,
        tokens=args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
    )
    if args.json:
        emit(dumps(filled(ContinuationDocument, continuation)))
    else:
        emit(continuation.text + "\n")
    return 0


def compare(trained: "Trained", args: argparse.Namespace) -> int:
    """Print the table of weights, or its document."""
    import sys

    from torchtally.cli.output import look
    from torchtally.report.formats import render
    from torchtally.report.report import table_report
    from torchtally.train.comparing import compare_weights

    report = table_report(compare_weights(trained, tokens=args.tokens).table())
    drawn = look(sys.stdout)
    emit(render(report, "json" if args.json else "text", drawn), is_coloured=drawn.is_coloured)
    return 0
