"""What DataLoaders take for their batches, by the host's clock."""

import json
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import torchtally
from torchtally.ledger import account
from torchtally.report.documents.run import run_document
from torchtally.report.keys import dumps
from torchtally.report.text import opening_sentences
from torchtally.trace import Trace
from torchtally.views.loading import slow_loading
from torchtally.views.notes import notes
from torchtally.views.summary import summarise

ITEM_S = 0.01


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(ITEM_S)
        return torch.zeros(4)


class SlowStream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        for _ in range(16):
            time.sleep(ITEM_S)
            yield torch.zeros(4)


def trained(dataset: Dataset[Any], workers: int = 0) -> Trace:
    """On batches of four."""

    def train() -> None:
        model = nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(dataset, batch_size=4, num_workers=workers):
            model(batch.cuda()).sum().backward()
            optimizer.step()

    return torchtally.run(train, gpu="H100-SXM")


@pytest.mark.parametrize("dataset", [Slow(), SlowStream()], ids=["map", "stream"])
def test_a_batch_takes_as_long_as_its_items(dataset: Dataset[Tensor]) -> None:
    (loading,) = trained(dataset).loading
    assert loading.frame is not None
    assert "DataLoader(dataset" in loading.frame.text
    assert (loading.workers, loading.batches) == (0, 4)
    assert 4 * ITEM_S < loading.batch_s < 40 * ITEM_S


def test_two_workers_bring_twice_as_many() -> None:
    """16 items in four batches: each worker takes two, beside the other."""
    (loading,) = trained(Slow(), workers=2).loading
    assert (loading.workers, loading.batches) == (2, 4)
    assert loading.seconds > 16 * ITEM_S
    assert loading.batch_s == loading.seconds / 8


def test_a_report_says_that_a_step_would_wait_for_its_batch() -> None:
    ledger = account(trained(Slow()), roofline=torchtally.roofline("H100-SXM"))
    slow = slow_loading(ledger)
    assert slow is not None
    assert slow.loading.batch_s > slow.step_s
    text = " ".join(opening_sentences(summarise(ledger)))
    assert "Data loading is not included, and takes longer" in text
    assert "test_loading.py" in text
    assert ("time not included", 1, "DataLoader without workers") in [
        row[:3] for row in notes(ledger).rows
    ]
    (document,) = json.loads(dumps(run_document(ledger)))["loading"]
    assert document["workers"] == 0
    assert document["batch_s"] == slow.loading.batch_s


def test_a_loader_that_keeps_up_is_not_spoken_of() -> None:
    """A large step beside rows of a tensor."""

    def train() -> None:
        model = nn.Linear(16384, 16384).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (batch,) in DataLoader(TensorDataset(torch.zeros(4, 1, 1)), batch_size=2):
            x = batch.cuda().expand(2, 65536, 16384)
            model(x).sum().backward()
            optimizer.step()

    trace = torchtally.run(train, gpu="H100-SXM", memory_is_limited=False)
    assert len(trace.loading) == 1
    ledger = account(trace, roofline=torchtally.roofline("H100-SXM"))
    assert slow_loading(ledger) is None
    assert "DataLoader" not in " ".join(opening_sentences(summarise(ledger)))
