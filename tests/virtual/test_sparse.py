"""Sparse tensors on the GPU: they stay sparse, and cost what their values cost."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import torchtally
from tests.traces import accounted
from torchtally.errors import UnsupportedError

CUDA = torch.device("cuda", 0)
Z, M, K, N = 5, 6, 4, 3
"""Values; rows and columns of the sparse matrix; columns of the dense one."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        yield


def matrix() -> Tensor:
    """(M, K) with Z values, on the host."""
    dense = torch.zeros(M, K)
    dense.view(-1)[:Z] = torch.arange(1.0, Z + 1)
    return dense


def product_flops(script: Any) -> list[int]:
    names = ("aten._sparse_mm", "aten._sparse_addmm")
    ledger = accounted(script)
    assert ledger.coverage.uncounted == ()
    return [entry.cost.flops for entry in ledger.entries if entry.call.name in names]


@pytest.mark.parametrize("form", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_a_product_costs_two_flops_for_a_value_and_a_column(form: str):
    def script() -> None:
        sparse = getattr(matrix(), form)().cuda()
        assert sparse.layout is getattr(matrix(), form)().layout
        assert sparse.device == CUDA
        dense = torch.randn(K, N, device="cuda")
        for result in (sparse @ dense, torch.sparse.mm(sparse, dense)):
            assert result.shape == (M, N)
            assert result.device == CUDA
        assert (sparse @ dense[:, 0]).shape == (M,)

    assert product_flops(script) == [2 * Z * N, 2 * Z * N, 2 * Z]


def test_the_gradient_of_the_dense_operand_costs_the_same_again():
    def script() -> None:
        sparse = matrix().to_sparse().cuda()
        dense = torch.randn(K, N, device="cuda", requires_grad=True)
        torch.sparse.mm(sparse, dense).sum().backward()
        assert dense.grad is not None
        assert dense.grad.shape == (K, N)

    assert product_flops(script) == [2 * Z * N] * 2


@pytest.mark.usefixtures("gpu")
def test_the_parts_of_a_sparse_tensor():
    sparse = matrix().to_sparse().cuda()
    assert sparse._nnz() == Z
    assert sparse.indices().device == sparse.values().device == CUDA
    assert sparse.values().tolist() == [1, 2, 3, 4, 5]
    assert (sparse * 2).values().tolist() == [2, 4, 6, 8, 10]
    assert sparse.to_dense().shape == (M, K)
    assert sparse.half().dtype is torch.float16
    assert (sparse + sparse)._nnz() == 2 * Z
    assert (sparse + sparse).coalesce().is_coalesced()
    back = sparse.cpu()
    assert back.device == torch.device("cpu")
    assert back.to_dense().equal(matrix())
    rows = matrix().to_sparse_csr().cuda()
    assert rows.crow_indices().tolist() == [0, 4, 5, 5, 5, 5, 5]


@pytest.mark.usefixtures("gpu")
def test_a_dense_tensor_made_sparse_on_the_gpu():
    assert matrix().cuda().to_sparse()._nnz() == Z
    unknown = torch.randn(64, 64, device="cuda")
    assert unknown.to_sparse()._nnz() == 64 * 64  # the declared share of it


@pytest.mark.usefixtures("gpu")
def test_sparse_gradients_of_an_embedding():
    table = torch.nn.Embedding(10, 4, sparse=True, device="cuda")
    for optimizer in (torch.optim.SparseAdam, torch.optim.SGD):
        table(torch.tensor([1, 2], device="cuda")).sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.device == CUDA
        assert table.weight.grad._nnz() == 2
        optimizer(table.parameters(), lr=0.1).step()
        table.weight.grad = None


def test_a_sparse_update_moves_the_rows_that_it_touches():
    """SGD adds 20 rows of 64 numbers to a table of a million: read with the values, and written."""

    def train() -> None:
        table = torch.nn.EmbeddingBag(1_000_000, 64, mode="sum", sparse=True, device="cuda")
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(2):
            ids = torch.randint(0, 1_000_000, (20,), device="cuda")
            table(ids, torch.arange(0, 20, 10, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = torchtally.run(train, gpu="H100-SXM", steps=2)
    ledger = torchtally.account(trace, roofline=torchtally.roofline("H100-SXM"))
    update = ledger.by_op()["aten.add_"]
    rows_bytes = 20 * 64 * 4
    assert update.flops == 20 * 64
    assert update.bytes_read == 2 * rows_bytes + 20 * 8
    assert update.bytes_written == rows_bytes
    assert update.kernel_s < 10e-6


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_sparse_gradients_of_an_embedding_bag(mode: str, is_weighted: bool):
    """A row of the gradient for every id of every bag, as on the host: here six, in two bags."""
    if is_weighted and mode == "mean":
        pytest.skip("torch has weights for sums alone")
    grads = []
    for device in ("cpu", "cuda"):
        table = torch.nn.EmbeddingBag(10, 4, mode=mode, sparse=True, device=device)
        ids = torch.tensor([1, 2, 4, 5, 4, 3], device=device)
        weights = torch.ones(6, device=device) if is_weighted else None
        bags = table(ids, torch.tensor([0, 4], device=device), per_sample_weights=weights)
        bags.sum().backward()
        grad = table.weight.grad
        assert grad is not None
        assert grad.device == table.weight.device
        grads.append((grad.shape, grad._nnz(), grad._indices().tolist(), grad._values().shape))
        torch.optim.SparseAdam(table.parameters(), lr=0.1).step()
    assert grads == [((10, 4), 6, [[1, 2, 4, 5, 4, 3]], (6, 4))] * 2


@pytest.mark.usefixtures("gpu")
def test_what_is_not_simulated_says_so_by_name():
    sparse = matrix().to_sparse().cuda()
    for call in (lambda: torch.sparse.softmax(sparse, 1), lambda: sparse @ sparse.t()):
        with pytest.raises(UnsupportedError, match="tally does not simulate aten"):
            call()


def test_host_sparse_tensors_are_real():
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.sparse.mm(matrix().to_sparse(), torch.ones(K, 1))[0].item() == 10


def test_nothing_of_a_sparse_training_is_uncounted():
    def script() -> None:
        sparse = matrix().to_sparse().cuda()
        (sparse + sparse).coalesce()
        (torch.randn(M, K, device="cuda") + sparse).to_sparse()
        sparse.to_dense()
        table = torch.nn.Embedding(10, 4, sparse=True, device="cuda")
        optimizer = torch.optim.SparseAdam(table.parameters())
        table(torch.tensor([1, 2], device="cuda")).sum().backward()
        optimizer.step()

    assert accounted(script).coverage.uncounted == ()
