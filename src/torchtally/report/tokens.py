"""What `tally data` prepared, and what token files hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.report.documents.training import TokensDocument
from torchtally.report.keys import filled
from torchtally.report.report import Report
from torchtally.table import Column, Table
from torchtally.units import Unit, format_bytes, format_count, format_fraction

Facts = Mapping[str, Any]
"""Of a file of tokens, as `train.data.check.examine` gives them."""

COLUMNS = (
    Column("tokens", "tokens", Unit.TOKENS),
    Column("token_bytes", "size", Unit.BYTES),
    Column("least_token", "least id", Unit.NUMBER),
    Column("greatest_token", "greatest id", Unit.NUMBER),
    Column("documents", "documents", Unit.COUNT),
    Column("format", "format", Unit.WORD),
    Column("dtype", "dtype", Unit.WORD),
    Column("file", "file", Unit.PLACE),
)


def prepared_text(folder: str, description: Facts, *, skipped: int, replaced: int) -> str:
    """What was written by `tally data prepare`, and what happened to the text on the way."""
    lines = [
        f"{folder}: tokens by {description['tokenizer']}, "
        f"vocabulary {description['vocabulary_size']}, {description['dtype']}"
    ]
    lines += (
        f"  {name:<12}{format_count(split['tokens']):>10} tokens in {len(split['shards'])} "
        f"file{'s' * (len(split['shards']) != 1)}, of {split['documents']} "
        f"document{'s' * (split['documents'] != 1)}"
        for name, split in description["splits"].items()
    )
    if skipped:
        lines.append(f"  {skipped} empty files or files that are not text left out")
    if replaced:
        lines.append(f"  {replaced} characters are U+FFFD: bytes that are not UTF-8")
    return "\n".join(lines) + "\n"


def token_files_report(files: Sequence[Facts]) -> Report:
    """What each file of tokens holds."""
    documents = [
        {"file" if name == "path" else name: fact for name, fact in file.items()} for file in files
    ]
    names = [column.name for column in COLUMNS]
    rows = tuple(tuple(document[name] for name in names) for document in documents)
    total = (sum(file["tokens"] for file in files), sum(file["token_bytes"] for file in files))

    return Report(
        title="Token files",
        tables=(("files", Table("Token files", COLUMNS, rows, (*total, *[None] * 6))),),
        text=lambda look: "\n".join(map(token_file_text, files)),
        document=lambda: filled(TokensDocument, files=documents),
    )


def token_file_text(file: Facts) -> str:
    """A paragraph about a file."""
    examined, tokens = file["tokens_looked_at"], file["tokens"]
    share = "all" if examined == tokens else format_fraction(examined / tokens)
    documents = "not counted by this format" if file["documents"] is None else file["documents"]
    return (
        f"{file['path']}\n"
        f"  format     {file['format']}, {file['dtype']}, from byte {file['offset_bytes']}\n"
        f"  tokens     {format_count(tokens)} ({tokens}), {format_bytes(file['token_bytes'])}\n"
        f"  ids        {file['least_token']} to {file['greatest_token']}, of {share} of them\n"
        f"  documents  {documents}\n"
    )
