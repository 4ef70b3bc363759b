"""Profilers' files with any value in any place, and any byte: an account, or one clear error."""

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.profiles.kineto_files import linear_step
from torchtally.errors import TallyError
from torchtally.ledger import account
from torchtally.report.explained import explained_report
from torchtally.runs.explain.schemas import packet
from torchtally.runs.explaining import explain

pytestmark = pytest.mark.one_case_in(12)

VALUES: list[Any] = [
    None, -1, 0, 1.5, 1e308, -1e308, float("nan"), float("inf"), 1 << 63, -(1 << 70), 10**30, True,
    "", "x", "\x1b[31m", "1e308", "9" * 50, "é", "aten::mul_", "[[1, 2]]", [], {}, [[]], [1],
    [[1e308]], [[-5]], [[10**18, 10**18]], {"a": 1},
]  # fmt: skip
DOCUMENTS = 40
"""By a seed."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything in a document."""
    if not isinstance(value, (dict, list)):
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def damage(document: Any, random: Random) -> bytes:
    document = copy.deepcopy(document)
    for _ in range(random.choice([1, 1, 2, 5])):
        *way, last = random.choice(places(document)[1:])
        holder = document
        for key in way:
            holder = holder[key]
        if random.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(random.choice(VALUES))
    content = bytearray(json.dumps(document).encode())
    for _ in range(random.choice([0, 0, 1, 5, 50])):
        content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content)


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_leaves_an_account_or_one_error(tmp_path: Path, seed: int) -> None:
    random, document = Random(seed), linear_step().document()
    path = tmp_path / "trace.json"
    explained = 0
    for _ in range(DOCUMENTS):
        path.write_bytes(damage(document, random))
        try:
            ledger = account(explain(str(path)))
            ledger.check()
            explained_report(ledger).document()
            explained += 1
        except TallyError as error:
            message = str(error)
            assert str(path) in message
            assert len(message) < 1000
    assert 0 < explained < DOCUMENTS


def test_overloads_of_torchscript_alone_are_none() -> None:
    assert {str(each) for each in packet("aten::mul_")} == {"aten.mul_.Tensor", "aten.mul_.Scalar"}
