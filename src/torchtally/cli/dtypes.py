"""`tally dtypes`: number formats, what values become in them, and what files would lose in them."""

import os
import re
from dataclasses import dataclass

from torchtally.cli.arguments import Subparsers
from torchtally.cli.declared import declare
from torchtally.cli.output import ReportOptions, write_or_emit, write_report
from torchtally.errors import UsageError
from torchtally.options import COUNT, FILE, Form, own

NAME = "dtypes"
SUMMARY = "number formats: their bits and ranges, what values or files of tensors become in them"

EPILOG = """\
examples:
  tally dtypes                            all formats: bits, ranges, uses
  tally dtypes 0.1                        what one tenth becomes in each
  tally dtypes 65504 1/3 --of fp16,bf16   in these, as torch spells them or as here
  tally dtypes 2**-24 -1e-8 inf           powers of two, negative numbers, inf and nan
  tally dtypes 1 2 3 448 --of mxfp8       numbers that share a scale
  tally dtypes 0.1 --json | jq '.values[0].becomes.bf16.value'
  tally dtypes model.safetensors --svg exponents.svg      what formats lose of each tensor
  tally dtypes checkpoints/ --of fp16,nvfp4 --top 20      of all files in a folder

A value is taken exactly: 0.1 is one tenth. Rounding is to nearest, ties to even. In formats with
blocks (mxfp8, mxfp6, mxfp4, nvfp4, int8, int4) the values are one tensor, cut into blocks in order.
A file ends in .safetensors, .npy, .gguf, .pt, .pth, .bin or .ckpt; every number of it is counted,
a part at a time.
"""
ONE_FILE = "name one file or folder of tensors at a time, without values"


@dataclass(frozen=True, kw_only=True)
class DtypesOptions(ReportOptions):
    """What `tally dtypes` is asked."""

    values: tuple[str, ...] = own(
        "VALUE",
        "as 0.1, 1e-8, 1/3 or 2**-14; or a file of tensors, or a folder of them",
        Form("VALUE"),
        nargs="*",
        default=(),
    )
    of: str = own("--of", "only these formats (fp16,bfloat16,mxfp8)", Form("A,B"), default="")
    top: int = own("--top", "of a file: tensors that are listed (default 10)", COUNT, default=10)
    svg: str | None = own(
        "--svg", "of a file: exponents over formats' ranges, to FILE", FILE, is_written=True
    )


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show number formats from fp64 to int4, or what values become in them: the\n"
        "nearest number, its error, its bits, under- and overflow. Of a file of tensors, what\n"
        "each format would lose. Without PyTorch (but for .pt), exact.",
        epilog=EPILOG,
    )
    # What begins with a minus and is none of our options is a number: argparse knows -1, not -1e-8.
    parser._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.I)
    declare(parser, DtypesOptions, command)


def command(options: DtypesOptions) -> int:
    """Print the formats, what the values become, or what the file's tensors lose."""
    names = [name for name in options.of.split(",") if name.strip()]
    files = [value for value in options.values if is_file(value)]
    if files:
        if len(options.values) > 1:
            raise UsageError(f"{files[0]}: {ONE_FILE}.")
        return _of_file(files[0], names, options)
    for field in ("top", "svg"):
        if field in options.given:
            raise UsageError(f"--{field} is of a file of tensors: name one, as model.safetensors.")
    from torchtally.report.number_formats import comparison_report
    from torchtally.views.number_formats import dtypes

    write_report(comparison_report(dtypes(*options.values, formats=names)), options)
    return 0


def is_file(value: str) -> bool:
    """A value names a file or a folder, and is not a number. ./1 is a file whose name is 1."""
    from torchtally.number_formats import real_of

    try:
        real_of(value)
    except UsageError:
        _, suffix = os.path.splitext(value)
        return os.path.exists(value) or os.sep in value or suffix in FILE_SUFFIXES
    return False


FILE_SUFFIXES = (".safetensors", ".npy", ".gguf", ".pt", ".pth", ".bin", ".ckpt")


def _of_file(path: str, names: list[str], options: DtypesOptions) -> int:
    from torchtally.numerics import file_numbers
    from torchtally.report.exponents_picture import exponents_picture
    from torchtally.report.tensor_numbers import tensor_numbers_report

    numbers = file_numbers(path, names)
    if options.svg is not None:
        write_or_emit(exponents_picture(numbers), options.svg)
        if options.svg == "-":
            return 0
    write_report(tensor_numbers_report(numbers, options.top), options)
    return 0
