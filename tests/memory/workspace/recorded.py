"""Rows of `tests/truth/operators.json`, and the calls that were theirs."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.builders import spec
from torchtally.chips import chip
from torchtally.memory.workspace import scratch
from torchtally.trace import Call, Literal, TensorSpec

RECORDED = json.loads((Path(__file__).parents[2] / "truth" / "operators.json").read_text())
H100 = chip("H100-SXM")
"""The device of the record."""


@dataclass(frozen=True)
class Row:
    """What one call of a user allocated besides its results, on PyTorch's CUDA build."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    literals: str
    temporaries_bytes: tuple[int, ...]
    persistent_bytes: tuple[int, ...]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shapes[0]))
        return " ".join(filter(None, (self.op, shape, self.dtypes[0], self.literals)))

    def spec(self, place: int, argument: str) -> TensorSpec:
        """An input, contiguous."""
        return spec(*self.shapes[place], argument=argument, dtype=self.dtypes[place])


def rows(*ops: str) -> list[Row]:
    """All rows of these operators."""
    recorded = [
        Row(
            row["op"],
            tuple(map(tuple, row["shapes"])),
            tuple(row["dtypes"]),
            row["literals"],
            tuple(row["temporaries_bytes"]),
            tuple(row["persistent_bytes"]),
        )
        for row in RECORDED["rows"]
        if row["op"] in ops
    ]
    assert {row.op for row in recorded} == set(ops), "an operator that was not recorded"
    return recorded


def call(
    name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], **literals: Literal
) -> Call:
    return Call(name, "default", inputs, outputs, tuple(literals.items()))


def sizes(of: Call) -> list[int]:
    """What the rule says, in bytes."""
    return [workspace.bytes for workspace in scratch(of, H100)]


def missing(row: Row, predicted: list[int]) -> list[int]:
    """Sizes of the rule that the call did not allocate.

    A row is a whole call of a user's: what other operators within it took is in it, too.
    """
    return sorted((Counter(predicted) - Counter(row.temporaries_bytes)).elements())
