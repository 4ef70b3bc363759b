"""Tensors whose dimensions a script names, with the sizes of the names."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from torchtally.ledger import Entry, Ledger, Line, own_line_of
from torchtally.table import Column, Table
from torchtally.trace import FORWARD_PHASES, Phase, TensorSpec
from torchtally.units import Unit
from torchtally.views.lines import line_texts, root_of
from torchtally.views.view import view

COLUMNS = (
    Column("bytes", "bytes", Unit.BYTES),
    Column("dimensions", "dimensions", Unit.TEXT),
    Column("dtype", "dtype", Unit.WORD),
    Column("line", "line", Unit.LINE),
)
MAKING = FORWARD_PHASES | {Phase.EVALUATION}
NOTE = (
    "Named by the line's jaxtyping annotations and einops patterns. A view's bytes are those of "
    "its elements; it takes no memory of its own."
)
NOTHING = (
    'No line names the dimensions of what it computes on the GPU: `x: Float[Tensor, "batch '
    'seq"] = ...` (jaxtyping), `-> Float[...]` of its function, or a pattern of einops.'
)
TOKEN = re.compile(r"\([^)]*\)|\S+")
"""A name, or the names that einops merges: `batch (heads hidden)`."""
SEVERAL = ("...", "*")
"""How a name begins that stands for any number of dimensions."""


@view("dimension", "tensors whose dimensions your lines name (jaxtyping, einops), and their sizes")
def dimensions(ledger: Ledger) -> Table:
    """What each such line makes, in the order of the run, each shape once."""
    tensors = dict.fromkeys(_named_tensors(ledger.reported))
    root = root_of(line for line, _, _ in tensors)
    return Table(
        "Tensors with named dimensions",
        COLUMNS,
        tuple(
            (spec.bytes, text, spec.dtype, line_texts(line, root)[0])
            for line, spec, text in tensors
        ),
        totals=(sum(spec.bytes for _, spec, _ in tensors), *[None] * (len(COLUMNS) - 1)),
        note=NOTE if tensors else NOTHING,
    )


def _named_tensors(entries: Iterable[Entry]) -> Iterator[tuple[Line | None, TensorSpec, str]]:
    """What a line makes is the result of its last operator."""
    forward_entries = (entry for entry in entries if entry.op.phase in MAKING)
    for frame, group in groupby(forward_entries, lambda entry: entry.site.line):
        if frame is not None and frame.dimensions:
            *_, last = group
            for spec in last.call.outputs[:1]:
                if text := sized_dimensions(frame.dimensions, spec.shape):
                    yield own_line_of(last), spec, text


def sized_dimensions(names: str, shape: tuple[int, ...]) -> str:
    """The names with their sizes, "batch=8 seq=1024"; "" where they are not those of the shape."""
    tokens = TOKEN.findall(names)
    if len(tokens) != len(shape) and names.isalpha() and len(names) == len(shape):
        tokens = list(names)  # torch.einsum's letters
    sizes: list[tuple[int, ...]] = [(size,) for size in shape]
    several = [place for place, token in enumerate(tokens) if token.startswith(SEVERAL)]
    if several and len(shape) >= len(tokens) - 1:
        end = len(shape) - (len(tokens) - several[0] - 1)
        sizes[several[0] : end] = [shape[several[0] : end]]
    if len(tokens) != len(sizes):
        return ""
    texts = ("x".join(map(str, each)) for each in sizes)
    pairs = zip(tokens, texts, strict=True)
    return " ".join(token if token == text else f"{token}={text}" for token, text in pairs if text)
