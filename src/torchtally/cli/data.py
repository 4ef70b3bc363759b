"""`tally data`: text into token files, and the contents of token files."""

from dataclasses import dataclass, fields

from torchtally.cli.arguments import Subparsers
from torchtally.cli.declared import declare
from torchtally.cli.output import ReportOptions, emit, write_report
from torchtally.errors import UsageError
from torchtally.options import COUNT, FILE, Form, OptionRecord, each, own
from torchtally.progress import StatusLine
from torchtally.units import format_bytes, parse_fraction

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


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(OptionRecord):
    """Files of text, and the token files to make of them."""

    inputs: tuple[str, ...] = own(
        "INPUT", "files, folders, globs, - for standard input", Form("INPUT"), nargs="+"
    )
    out: str = own("--out", "the folder to create", Form("DIR"), is_required=True)
    tokenizer: str = own(
        "--tokenizer",
        "bytes as they are, or a tokenizer.json (needs torchtally[bpe]); default byte",
        Form("byte|FILE"),
        default="byte",
    )
    vocabulary_size: int | None = own(
        "--vocabulary-size",
        "train byte pairs on the training text, N tokens at most (needs torchtally[bpe])",
        COUNT,
    )
    end_of_document: str | None = own(
        "--end-of-document",
        "the token after each document, or none; default: found by its usual names",
        Form("TOKEN"),
    )
    validation: float = own(
        "--validation",
        "share of the text kept for validation; default 0.1",
        Form("FRACTION", parse_fraction),
        default=0.1,
    )
    shard_tokens: int = own(
        "--shard-tokens", "tokens per file, at most; default 100M", COUNT, default=100_000_000
    )
    seed: int = own("--seed", "seed of the validation split; default 0", Form("N", int), default=0)
    is_overwriting: bool = own("--overwrite", "replace the contents of DIR")
    quiet: bool = own("--quiet", "no progress on stderr")


@dataclass(frozen=True, kw_only=True)
class TokensOptions(ReportOptions):
    """Token files to look at."""

    files: tuple[str, ...] = own("FILE", "files of tokens, or folders", FILE, nargs="+")
    dtype: str | None = own(
        "--dtype", "dtype of files without a header: uint16, uint32, ...", Form("DTYPE")
    )
    layout: str | None = own(
        "--layout",
        "format of the files, whatever their headers say",
        choices=each("raw", "llm.c", "npy", "megatron"),
    )
    vocabulary_size: int | None = own(
        "--vocabulary-size", "refuse a file with an id of N or more", COUNT
    )
    all: bool = own("--all", "look at every token, not at 1 %%")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser and those below it."""
    parser = subparsers.add_parser(
        "data",
        help=SUMMARY,
        description="Turn text into the token files that training reads, and inspect such files.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    prepares = commands.add_parser(
        "prepare", help="turn text into token files", description=PREPARE
    )
    declare(prepares, PrepareOptions, prepare)
    shows = commands.add_parser("show", help="print the contents of token files", description=SHOW)
    declare(shows, TokensOptions, show)


def prepare(options: PrepareOptions) -> int:
    """Make the folder, and say what is in it."""
    from msgspec import to_builtins

    from torchtally.report.tokens import prepared_text
    from torchtally.train.data.prepare import PrepareRequest
    from torchtally.train.data.prepare import prepare as make

    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: a seed is 0 or more.")
    wanted = {each.name: getattr(options, each.name) for each in fields(PrepareRequest)}
    preparation = PrepareRequest(**wanted)
    with StatusLine(is_quiet=options.quiet) as status:

        def show_read(what: str, done_bytes: int, all_bytes: int) -> None:
            text = f"{what}: {format_bytes(done_bytes)} of {format_bytes(all_bytes)}"
            status.show(text, share=done_bytes / all_bytes)

        prepared = make(preparation, show_read)
    description, skipped = to_builtins(prepared.description), prepared.skipped
    emit(prepared_text(options.out, description, skipped=skipped, replaced=prepared.replaced))
    return 0


def show(options: TokensOptions) -> int:
    """Print what each file holds. The first that is damaged is an error."""
    from torchtally.report.tokens import token_files_report
    from torchtally.train.data.check import examine
    from torchtally.train.data.files import token_files
    from torchtally.train.data.token_file import Format

    layout = None if options.layout is None else Format(options.layout)
    files = token_files(options.files, dtype=options.dtype, format=layout)
    facts = [examine(file, options.vocabulary_size, is_whole=options.all) for file in files]
    write_report(token_files_report(facts), options)
    return 0
