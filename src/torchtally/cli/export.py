"""`tally export`: a run in the formats of other tools, a trained model as others load it."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers
from torchtally.cli.chip_names import say_variants
from torchtally.cli.destination import add_output, check_output, place_of
from torchtally.cli.ledgers import add_convention, ledger_of_file
from torchtally.cli.output import emit, write_bytes
from torchtally.cli.show import chip_of, step_selection
from torchtally.cli.streams import say
from torchtally.report.exports import export_names

if TYPE_CHECKING:
    from torchtally.report.exports import Exported

NAME = "export"
SUMMARY = "write a run for memory_viz, Perfetto, speedscope, ..., or a trained model"
MODELS = {
    "hf": "a model that `tally train` trained, as a folder of transformers",
    "gguf": "the same as one file of llama.cpp",
}

EXAMPLES = """\
examples:
  tally export run.tally --to memory-snapshot           writes run.snapshot.pickle
  tally export run.tally --to perfetto -o step.json.gz --gpu A100-SXM
  tally export run.tally --to speedscope --step 2
  tally export run.tally --to flamegraph --of memory -o peak.svg
  tally export run.tally --to folded -o - | flamegraph.pl > flops.svg
  tally export run.tally --to parquet -o calls.parquet
  tally export runs/byte_gpt --to hf -o models/byte_gpt
  tally export runs/byte_gpt --to hf -o models/early --step 500 --dtype bfloat16
  tally export runs/byte_gpt --to hf -o models/small --weights int8
  tally export runs/byte_gpt --to gguf -o models/byte_gpt.gguf --weights int8

Of a run, totals are of one step, as in `tally show`; a memory snapshot covers the whole run unless
--step names a part of it. A model's folder gets config.json, model.safetensors, and the tokenizer
of the data as tokenizer.json, which transformers loads; GGUF has all of it in one file.
"""
OF_A_RUN = ("gpu", "of")
OF_A_MODEL = ("dtype", "weights")


def epilog() -> str:
    """Every format with its line of help, and the examples."""
    from torchtally.report.exports import exporter

    lines = {name: exporter(name).SUMMARY for name in export_names()}
    lines |= MODELS
    width = max(map(len, lines))
    text = "".join(f"  {name:{width}}  {line}\n" for name, line in lines.items())
    return f"formats:\n{text}\n{EXAMPLES}"


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Write what a run did as files that other tools open, or a trained model.",
        epilog=epilog,
    )
    parser.add_argument(
        "file",
        metavar="RUN",
        help="a trace (tally run -o FILE); for hf and gguf the folder of a training",
    )
    parser.add_argument(
        "--to",
        choices=(*export_names(), *MODELS),
        required=True,
        metavar="FORMAT",
        help="the format, one of those below",
    )
    add_output(
        parser,
        "-o",
        "--output",
        "--out",
        makes_folder=True,
        metavar="FILE",
        help="where it goes (default: beside RUN; - for stdout, where it is text); .gz at its end "
        "compresses",
    )
    parser.add_argument(
        "--step",
        type=step_selection,
        metavar="N",
        help="step N, FIRST..LAST, or the whole run ('all'); hf, gguf: this checkpoint",
    )
    parser.add_argument("--gpu", metavar="NAME", help="another chip to time the run on")
    parser.add_argument(
        "--of",
        metavar="QUANTITY",
        help="for flamegraph and folded: time (default), flops, bytes (moved), saved (for the "
        "backward pass), memory (at the peak)",
    )
    add_convention(parser)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="hf, gguf: dtype of the weights; default: as trained",
    )
    parser.add_argument(
        "--weights",
        choices=("int8", "fp8", "int4"),
        help=(
            "quantised weights; hf: by torchao, in the format of compressed-tensors; gguf: Q8_0 "
            "and Q4_0"
        ),
    )
    parser.add_argument(
        "--overwrite", dest="replace", action="store_true", help="the same as --replace"
    )
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Write the files, and say where."""
    check(args)
    return export_model(args) if args.to in MODELS else export_run(args)


def check(args: argparse.Namespace) -> None:
    """Raises UsageError for options of a run with a model, and the other way round."""
    from torchtally.errors import UsageError
    from torchtally.report.exports import exporter

    is_model = args.to in MODELS
    for name in OF_A_RUN if is_model else OF_A_MODEL:
        if getattr(args, name):
            raise UsageError(
                f"--{name} applies to {'runs' if is_model else 'models'}: leave it out with --to "
                f"{args.to}."
            )
    if args.of and not getattr(exporter(args.to), "IS_OF_A_QUANTITY", False):
        raise UsageError(f"--to {args.to} exports every quantity: leave out --of.")
    if is_model and args.output is None:
        raise UsageError(f"--to {args.to}: missing folder. Name it: -o models/mine.")
    if is_model and not isinstance(args.step, int | None):
        raise UsageError(f"--to {args.to} exports one checkpoint: give --step a number.")


def export_run(args: argparse.Namespace) -> int:
    """The files of a format, each whole or not at all."""
    import os

    from torchtally.errors import UsageError
    from torchtally.report.exports import Wanted, export, exporter

    place = args.output or args.file.removesuffix(".tally") + exporter(args.to).SUFFIX
    if place != "-" and os.path.exists(place) and os.path.samefile(place, args.file):
        raise UsageError(f"{place}: is the run itself. Choose another file with -o FILE.")
    place_of(place, "-o")
    say_variants([args.gpu] if args.gpu else [])
    ledger = ledger_of_file(args, chip_of(args.gpu) if args.gpu else None)
    exported = export(ledger, args.to, Wanted(args.of or "", args.step is not None))
    for part in exported.parts:
        check_output(place + part if place != "-" else place, "-o", args)
    write_parts(exported, args.to, place)
    for remark in exported.remarks:
        say(f"tally: note: {remark}")
    return 0


def write_parts(exported: "Exported", format: str, place: str) -> None:
    """Writes to files beside each other, whose names are printed, or one text to stdout for "-"."""
    from torchtally.errors import UsageError

    if place == "-":
        content = exported.parts.get("")
        if not isinstance(content, str):
            raise UsageError(f"--to {format} is binary, not text for stdout. Name a file: -o FILE.")
        emit(content)
        return
    for part, content in exported.parts.items():
        write_bytes(compress(content, place), place + part)
        emit(f"{place}{part}\n")


def compress(content: str | bytes, place: str) -> bytes:
    """Bytes as they stand in a file of this name; the same bytes for the same content."""
    import gzip

    plain = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return gzip.compress(plain, 6, mtime=0) if place.endswith(".gz") else plain


def export_model(args: argparse.Namespace) -> int:
    """Write the model, and say what is in it."""
    from pathlib import Path

    from torchtally.errors import UsageError
    from torchtally.train.models.huggingface_config import CONFIG
    from torchtally.train.trained import export, load_trained
    from torchtally.units import format_count

    place = args.output
    written = Path(place, CONFIG) if args.to == "hf" else Path(place)
    if written.exists() and not args.replace:
        raise UsageError(f"{place}: already has a model. Add --replace to overwrite it.")
    trained = load_trained(args.file, args.step)
    parts, has_tokenizer = export(
        trained, place, dtype=args.dtype, weights=args.weights, is_gguf=args.to == "gguf"
    )
    parameters = format_count(sum(value.numel() for value in trained.model.parameters()))
    kind = str(trained.model.embedding.weight.dtype).removeprefix("torch.")
    which = "matrices of layers" if args.to == "hf" else "matrices"
    kind += f", {which} in {args.weights}" if args.weights else ""
    emit(f"{trained.source}: {parameters} parameters in {kind}\n{place}: {', '.join(parts)}\n")
    if not has_tokenizer:
        why = (
            "that of the data is unknown"
            if trained.tokenizer_json is None
            else ("GGUF takes byte-level ones that split text as GPT-2's does")
        )
        emit(f"without a tokenizer: {why}\n")
    return 0
