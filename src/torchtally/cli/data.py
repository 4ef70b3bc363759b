"""`tally data`: text into token files, and what a token file holds."""

import argparse
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import Subparsers, fraction, positive_count
from torchtally.errors import UsageError
from torchtally.progress import StatusLine
from torchtally.units import format_bytes, format_count, format_fraction

if TYPE_CHECKING:
    from torchtally.train.data.description import Description
    from torchtally.train.data.prepare import PreparedData
    from torchtally.train.data.token_file import TokenFile

NAME = "data"
SUMMARY = "turn text into token files, and look into them"

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

Every file is a document with an end-of-document id behind it. Of many documents
whole ones are kept for validation, of few the end of each.
"""

SHOW = """\
Print what files of tokens hold: nanoGPT's .bin, llm.c's and modded-nanogpt's
.bin, .npy with a header and without, Megatron's .bin and .idx, or a folder made by
`tally data prepare`. A file without a header needs --dtype.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser and those below it."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Turn text into the token files that training reads, and look into such files.",
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
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
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
        help="the tokenizer's token behind each document, or none; default: by its usual names",
    )
    parser.add_argument(
        "--validation",
        type=fraction,
        default=0.1,
        metavar="FRACTION",
        help="of the text, kept for validation; default 0.1",
    )
    parser.add_argument(
        "--shard-tokens",
        type=positive_count,
        default=100_000_000,
        metavar="N",
        help="most tokens of one file; default 100M",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="for which documents validate; default 0"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what DIR holds")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(data_command=prepare)


def _add_show(commands: Any) -> None:
    parser = commands.add_parser(
        "show",
        help="print what token files hold",
        description=SHOW,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of tokens, or folders")
    parser.add_argument("--dtype", help="of files without a header: uint16, uint32, ...")
    parser.add_argument(
        "--format",
        choices=("raw", "llm.c", "npy", "megatron"),
        help="what the files are, whatever they begin with",
    )
    parser.add_argument(
        "--vocabulary-size",
        type=positive_count,
        metavar="N",
        help="refuse a file with an id of N or more",
    )
    parser.add_argument("--all", action="store_true", help="look at every token, not at 1 %%")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="as JSON to FILE or to stdout"
    )
    parser.set_defaults(data_command=show)


def prepare(args: argparse.Namespace) -> int:
    """Make the folder, and say what is in it."""
    from torchtally.cli.output import emit
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
    emit(prepared_text(args.out, prepared))
    return 0


def prepared_text(folder: str, prepared: "PreparedData") -> str:
    """What was made, and what happened to the text on the way."""
    lines = [f"{folder}: {description_line(prepared.description)}"]
    lines += (
        f"  {name:<12}{format_count(split.tokens):>10} tokens in {len(split.shards)} "
        f"file{'s' * (len(split.shards) != 1)}, of {split.documents} "
        f"document{'s' * (split.documents != 1)}"
        for name, split in prepared.description.splits.items()
    )
    if prepared.skipped:
        lines.append(f"  {prepared.skipped} empty files or files that are not text left out")
    if prepared.replaced:
        lines.append(f"  {prepared.replaced} characters are U+FFFD: bytes that were no UTF-8")
    return "\n".join(lines) + "\n"


def description_line(description: "Description") -> str:
    """In a line: tokens by byte, vocabulary 257, uint16."""
    return (
        f"tokens by {description.tokenizer}, vocabulary {description.vocabulary_size}, "
        f"{description.dtype}"
    )


def show(args: argparse.Namespace) -> int:
    """Print what each file holds. The first that is damaged is an error."""
    import json

    from torchtally.cli.output import emit, write_or_emit
    from torchtally.train.data.files import token_files
    from torchtally.train.data.token_file import Format

    format = None if args.format is None else Format(args.format)
    files = token_files(args.files, dtype=args.dtype, format=format)
    documents = [file_document(file, args.vocabulary_size, is_whole=args.all) for file in files]
    if args.json is not None:
        document = {"format_version": 1, "files": documents}
        write_or_emit(json.dumps(document, indent=1, ensure_ascii=False) + "\n", args.json)
    else:
        emit("\n".join(file_text(file_document) for file_document in documents))
    return 0


def file_document(
    file: "TokenFile", vocabulary_size: int | None, *, is_whole: bool
) -> dict[str, Any]:
    """All that is known of a file. Raises UsageError for an id outside of the vocabulary."""
    from torchtally.train.data.check import check_tokens, extremes

    if vocabulary_size is not None:
        check_tokens([file], vocabulary_size=vocabulary_size, seed=0, is_whole=is_whole)
    sample = extremes(file, seed=0, is_whole=is_whole)
    return {
        "path": file.path,
        "format": file.format.value,
        "dtype": file.dtype,
        "tokens": file.tokens,
        "token_bytes": file.tokens * file.token_bytes,
        "offset_bytes": file.offset_bytes,
        "documents": file.documents,
        "tokens_looked_at": sample.tokens,
        "least_token": sample.least,
        "greatest_token": sample.most,
    }


def file_text(record: dict[str, Any]) -> str:
    """A paragraph about a file."""
    examined, tokens = record["tokens_looked_at"], record["tokens"]
    looked = "all" if examined == tokens else format_fraction(examined / tokens)
    documents = "not counted by this format" if record["documents"] is None else record["documents"]
    return (
        f"{record['path']}\n"
        f"  format     {record['format']}, {record['dtype']}, from byte {record['offset_bytes']}\n"
        f"  tokens     {format_count(tokens)} ({tokens}), {format_bytes(record['token_bytes'])}\n"
        f"  ids        {record['least_token']} to {record['greatest_token']}, of {looked} of them\n"
        f"  documents  {documents}\n"
    )
