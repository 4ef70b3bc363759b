"""`tally tensor`: the storage that an expression's tensor is a window on."""

import argparse

from torchtally.cli.arguments import Subparsers
from torchtally.cli.output import add_format, write_report

NAME = "tensor"
SUMMARY = "how an expression's tensor lies in memory: strides, views, copies"

EPILOG = """\
examples:
  tally tensor "torch.arange(12).view(3, 4).transpose(0, 1)[1:]"
  tally tensor "x.T.contiguous()" --let x=4x6:bfloat16
  tally tensor "q.view(8, 1024, 16, 64).transpose(1, 2)" --let q=8x1024x1024
  tally tensor "y = x[:, None].expand(4, 3, 6); y.reshape(-1)" --let x=4x6
  tally tensor "rearrange(x, 'b (h d) -> b h d', h=2)" --let x=4x6
  tally tensor "x[1:]" --let x=3x4 --format html > x.html

--let NAME=SHAPE[:DTYPE] makes a tensor whose elements are numbered from 0
(float32 unless a dtype is given); --let NAME=EXPRESSION any other. There are
torch, F (torch.nn.functional), math, and einops's functions where it is
installed. Each call, method and index is a step:

  new       a result in memory of its own
  copy      another tensor's values, moved to memory of their own
  view      another tensor's memory
  itself    the same tensor: there was nothing to do
  in place  the same tensor, written to

Large sizes take no memory: they are computed without values.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show shape, strides, offset and storage of every tensor in an expression,\n"
        "what is a view and what a copy, and where the result's elements lie.",
        epilog=EPILOG,
    )
    parser.add_argument("expression", metavar="EXPRESSION", help="Python, of functions of torch")
    parser.add_argument(
        "--let", action="append", default=[], metavar="NAME=SHAPE", type=parse_definition,
        help="an input, as x=4x6:float32 or x=EXPRESSION (repeatable)",
    )  # fmt: skip
    add_format(parser)
    parser.set_defaults(command=command)


def parse_definition(text: str) -> tuple[str, str]:
    """(name, shape or expression) of "x=4x6"."""
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise argparse.ArgumentTypeError(
            f"{text!r} does not define a tensor. These work: x=4x6, x=4x6:bfloat16, "
            "x=torch.randn(2, 3)"
        )
    return name.strip(), value.strip()


def command(args: argparse.Namespace) -> int:
    """Evaluate the expression and print its steps."""
    from torchtally.expressions import evaluate
    from torchtally.report.strided import evaluation_report

    write_report(evaluation_report(evaluate(args.expression.strip(), dict(args.let))), args)
    return 0
