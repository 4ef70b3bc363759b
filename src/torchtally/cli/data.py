"""`tally data`: text into token files, and the contents of token files."""

import argparse
from typing import Any

from torchtally.cli.arguments import Subparsers
from torchtally.cli.output import add_format, emit, write_report
from torchtally.errors import UsageError
from torchtally.options import positive_count
from torchtally.progress import StatusLine
from torchtally.units import format_bytes, parse_fraction

NAME = "data"
SUMMARY = "turn text into token files, and inspect them"

EPILOG = """\
examples:
  tally data prepare book.txt --out data/book                  bytes are the tokens
  tally data prepare src/ 'notes/**/*.md' --out data/mine
  zcat corpus.gz | tally data prepare - --out data/corpus --vocabulary-size 32K
  tally data prepare texts/ --out data/gpt2 --tokenizer gpt2/tokenizer.json
  tally data show data/book
  tally data show train.bin --dtype uint16 --vocabulary-size 50257

`tally data COMMAND --help` explains a command.
"""

PREPARE = """\
Turn text into files of token ids. Files are taken as they are; in folders and
globs, what is hidden or not text is left out. In DIR afterwards:

  train-00000.bin, validation-00000.bin, ...   ids in llm.c's format, uint16 or uint32
  tokens.json                                  what they are: vocabulary, counts, sha256
  tokenizer.json                               unless bytes are the tokens

Every file is a document, followed by an end-of-document id. Of many documents
whole ones are kept for validation, of few the end of each.
"""

SHOW = """\
Print the contents of token files: nanoGPT's .bin, llm.c's and modded-nanogpt's
.bin, .npy with a header and without, Megatron's .bin and .idx, or a folder made by
`tally data prepare`. A file without a header needs --dtype.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser and those below it."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Turn text into the token files that training reads, and inspect such files.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_prepare(commands)
    _add_show(commands)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Do what the command below `data` is for."""
    status: int = args.data_command(args)
    return status


def _add_prepare(commands: Any) -> None:
    parser = commands.add_parser(
        "prepare",
        help="turn text into token files",
        description=PREPARE,
    )
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="files, folders, globs, - for standard input"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to create")
    parser.add_argument(
        "--tokenizer",
        default="byte",
        metavar="byte|FILE",
        help="bytes as they are, or a tokenizer.json (needs torchtally[bpe]); default byte",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=positive_count,
        metavar="N",
        help="train byte pairs on the training text, N tokens at most (needs torchtally[bpe])",
    )
    parser.add_argument(
        "--end-of-document",
        metavar="TOKEN",
        help="the token after each document, or none; default: found by its usual names",
    )
    parser.add_argument(
        "--validation",
        type=parse_fraction,
        default=0.1,
        metavar="FRACTION",
        help="share of the text kept for validation; default 0.1",
    )
    parser.add_argument(
        "--shard-tokens",
        type=positive_count,
        default=100_000_000,
        metavar="N",
        help="tokens per file, at most; default 100M",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the validation split; default 0"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the contents of DIR")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(data_command=prepare)


def _add_show(commands: Any) -> None:
    parser = commands.add_parser(
        "show",
        help="print the contents of token files",
        description=SHOW,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of tokens, or folders")
    parser.add_argument("--dtype", help="dtype of files without a header: uint16, uint32, ...")
    parser.add_argument(
        "--layout",
        choices=("raw", "llm.c", "npy", "megatron"),
        help="format of the files, whatever their headers say",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=positive_count,
        metavar="N",
        help="refuse a file with an id of N or more",
    )
    parser.add_argument("--all", action="store_true", help="look at every token, not at 1 %%")
    add_format(parser)
    parser.set_defaults(data_command=show)


def prepare(args: argparse.Namespace) -> int:
    """Make the folder, and say what is in it."""
    from msgspec import to_builtins

    from torchtally.report.tokens import prepared_text
    from torchtally.train.data.prepare import PrepareRequest
    from torchtally.train.data.prepare import prepare as make

    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: a seed is 0 or more.")
    preparation = PrepareRequest(
        inputs=tuple(args.inputs),
        out=args.out,
        tokenizer=args.tokenizer,
        vocabulary_size=args.vocabulary_size,
        end_of_document=args.end_of_document,
        validation=args.validation,
        shard_tokens=args.shard_tokens,
        seed=args.seed,
        is_overwriting=args.overwrite,
    )
    with StatusLine(is_quiet=args.quiet) as status:

        def show_read(what: str, done_bytes: int, all_bytes: int) -> None:
            text = f"{what}: {format_bytes(done_bytes)} of {format_bytes(all_bytes)}"
            status.show(text, share=done_bytes / all_bytes)

        prepared = make(preparation, show_read)
    description, skipped = to_builtins(prepared.description), prepared.skipped
    emit(prepared_text(args.out, description, skipped=skipped, replaced=prepared.replaced))
    return 0


def show(args: argparse.Namespace) -> int:
    """Print what each file holds. The first that is damaged is an error."""
    from torchtally.report.tokens import token_files_report
    from torchtally.train.data.check import examine
    from torchtally.train.data.files import token_files
    from torchtally.train.data.token_file import Format

    layout = None if args.layout is None else Format(args.layout)
    files = token_files(args.files, dtype=args.dtype, format=layout)
    facts = [examine(file, args.vocabulary_size, is_whole=args.all) for file in files]
    write_report(token_files_report(facts), args)
    return 0
