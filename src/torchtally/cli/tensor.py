"""`tally tensor`: the storage that an expression's tensor is a window on."""

from dataclasses import dataclass

from torchtally.cli.output import ReportOptions, write_report
from torchtally.errors import UsageError
from torchtally.options import Form, own

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


def parse_definition(text: str) -> tuple[str, str]:
    """(name, shape or expression) of "x=4x6"."""
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise UsageError(
            f"{text!r} does not define a tensor. These work: x=4x6, x=4x6:bfloat16, "
            "x=torch.randn(2, 3)"
        )
    return name.strip(), value.strip()


@dataclass(frozen=True, kw_only=True)
class TensorOptions(ReportOptions):
    """Show shape, strides, offset and storage of every tensor in an expression, what is a view
    and what a copy, and where the result's elements lie.
    """

    expression: str = own("EXPRESSION", "Python, of functions of torch", Form("EXPRESSION"))
    let: tuple[tuple[str, str], ...] = own(
        "--let",
        "an input, as x=4x6:float32 or x=EXPRESSION (repeatable)",
        Form("NAME=SHAPE", parse_definition),
        is_repeated=True,
    )


def command(options: TensorOptions) -> int:
    """Evaluate the expression and print its steps."""
    from torchtally.expressions import evaluate
    from torchtally.report.strided import evaluation_report

    write_report(
        evaluation_report(evaluate(options.expression.strip(), dict(options.let))), options
    )
    return 0
