"""Data loaders, their workers and pinned memory; processes that are not part of the simulation."""

import multiprocessing
import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, random_split

import torchtally

pytestmark = pytest.mark.one_case_in(2)


class Squares(Dataset[tuple[Tensor, int]]):
    """Item n is (n * n, whether the process that made it sees a GPU)."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, n: int) -> tuple[Tensor, int]:
        return torch.full((2,), float(n * n)), os.getpid()


def seen(loader: DataLoader[Any]) -> list[list[float]]:
    """The batches, moved to the device and read back."""
    return [batch[0].to("cuda", non_blocking=True)[:, 0].tolist() for batch in loader]


EXPECTED = [[0, 1, 4, 9], [16, 25, 36, 49]]


@pytest.mark.parametrize("options", [{}, {"pin_memory": True}], ids=str)
def test_batches_arrive_with_their_values(options: dict[str, Any]):
    with torchtally.virtual_gpu("H100-SXM"):
        assert seen(DataLoader(Squares(), batch_size=4, **options)) == EXPECTED


def test_pinned_batches_say_so():
    with torchtally.virtual_gpu("H100-SXM"):
        batch, _ = next(iter(DataLoader(Squares(), batch_size=4, pin_memory=True)))
        assert batch.is_pinned()
        assert not batch.is_cuda


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_are_not_part_of_the_simulation(method: str):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    with torchtally.virtual_gpu("H100-SXM"):
        loader = DataLoader(
            Squares(), batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context=method
        )
        batches = list(loader)
        assert [b[0].cuda()[:, 0].tolist() for b in batches] == EXPECTED
        assert {int(pid) for b in batches for pid in b[1]}.isdisjoint({os.getpid()})
        assert torch.cuda.is_available()


def test_persistent_workers_and_two_epochs():
    with torchtally.virtual_gpu("H100-SXM"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, persistent_workers=True)
        assert seen(loader) == seen(loader) == EXPECTED
        del loader


def test_shuffling_follows_the_hosts_seed():
    def order() -> list[float]:
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=8, shuffle=True)
        batch: list[float] = next(iter(loader))[0].tolist()
        return batch

    expected = order()
    with torchtally.virtual_gpu("H100-SXM"):
        assert order() == expected


def test_splits_and_samplers():
    with torchtally.virtual_gpu("H100-SXM"):
        data = TensorDataset(torch.arange(10))
        train, test = random_split(data, [8, 2], generator=torch.Generator().manual_seed(0))
        assert (len(train), len(test)) == (8, 2)
        sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
        assert list(sampler) == [0, 2, 4, 6, 8]
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(data, batch_size=5, shuffle=True, generator=generator)
        assert sorted(int(n) for batch in loader for n in batch[0]) == list(range(10))


def test_a_dataset_on_the_device():
    with torchtally.virtual_gpu("H100-SXM"):
        data = TensorDataset(torch.arange(4, device="cuda"))
        (batch,) = next(iter(DataLoader(data, batch_size=4)))
        assert batch.is_cuda
        assert batch.tolist() == [0, 1, 2, 3]


def test_random_windows_of_a_memory_mapped_file(tmp_path):
    """The mission's data: token ids in a flat file, pinned, copied without blocking."""
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    with torchtally.virtual_gpu("H100-SXM"):
        data = np.memmap(path, dtype=np.uint16, mode="r")
        torch.manual_seed(0)
        starts = torch.randint(len(data) - 8, (4,))
        x = torch.stack([torch.from_numpy(data[i : i + 8].astype(np.int64)) for i in starts])
        x = x.pin_memory().to("cuda", non_blocking=True)
        assert x.shape == (4, 8)
        assert (x[:, 1:] - x[:, :-1]).unique().tolist() == [1]
        assert x[:, 0].tolist() == starts.tolist()


def test_a_forked_child_sees_the_host_only():
    def child(queue: Any) -> None:
        queue.put((torch.zeros(2) + 1).tolist())

    with torchtally.virtual_gpu("H100-SXM"):
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        assert queue.get(timeout=60) == [1, 1]
        process.join(timeout=60)
        assert process.exitcode == 0


@pytest.mark.parametrize("is_inferring", [True, False])
def test_evaluation_loaders_pin(is_inferring: bool):
    """Under inference mode the composition `pin_memory` reaches the device whole."""
    with torchtally.virtual_gpu("H100-SXM"), torch.inference_mode(is_inferring):
        pinned = torch.arange(4).pin_memory()
        assert pinned.is_pinned()
        assert pinned.pin_memory() is pinned
        assert pinned.cuda(non_blocking=True).tolist() == [0, 1, 2, 3]
        assert seen(DataLoader(Squares(), batch_size=4, pin_memory=True)) == EXPECTED
