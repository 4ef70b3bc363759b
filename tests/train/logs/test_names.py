"""The names are those that others log, and every one of ours is explained."""

import torch
from torch import nn
from transformers.integrations.integration_utils import rewrite_logs

from torchtally.numerics.watch import NumbersWatch
from torchtally.progress import StepRecord
from torchtally.train.logs import names
from torchtally.train.logs.names import values_of

CONSTANTS = {
    value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and name != "MEMORY"
}


def test_names_are_those_of_transformers_trainer() -> None:
    keys = (
        "loss", "grad_norm", "learning_rate", "epoch", "global_step", "num_input_tokens_seen",
        "eval_loss", "eval_runtime",
    )  # fmt: skip
    theirs = rewrite_logs(dict.fromkeys(keys, 0))
    assert theirs.keys() <= CONSTANTS


def test_every_name_has_a_meaning_and_a_unit() -> None:
    assert {meaning for meaning in names.MEANINGS if "*" not in meaning} == CONSTANTS
    assert all(row["meaning"] and row["unit"] for row in names.MEANINGS.values())


def test_a_step_is_logged_under_known_names_mfu_in_percent() -> None:
    record = StepRecord(
        loss=2.0, learning_rate=1e-3, tokens=64, tokens_per_s=32.0, step_s=2.0, wait_s=0.5,
        grad_norm=1.0, epoch=0.25, mfu=0.43, memory_bytes={"optimizer state": 8},
    )  # fmt: skip
    values = values_of(record)
    assert values.pop("memory/optimizer_state_bytes") == 8
    assert values.keys() <= CONSTANTS
    assert values[names.MFU] == 43.0


def test_numbers_that_are_lost_are_logged_under_known_names() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    watch = NumbersWatch(layer, optimizer, say=str)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert watch.values().keys() == {name for name in CONSTANTS if name.startswith("numbers/")}


def test_what_nobody_knows_is_not_logged() -> None:
    record = StepRecord(
        loss=2.0, learning_rate=1e-3, tokens=64, tokens_per_s=32.0, step_s=2.0, wait_s=0.5
    )
    assert not {names.MFU, names.GRAD_NORM, names.EPOCH} & values_of(record).keys()
