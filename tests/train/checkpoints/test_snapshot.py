"""Copies that nothing changes any more, in buffers that are used again."""

import pytest
import torch

from tests.train.checkpoints.test_formats import all_dtypes, bits
from torchtally.checkpoints.snapshot import Snapshot


def test_what_is_changed_afterwards_is_not_in_the_copies() -> None:
    tensors = all_dtypes()
    before = {name: bits(tensor) for name, tensor in tensors.items()}
    snapshot = Snapshot()
    snapshot.take(tensors)
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8).fill_(0)
    copies = snapshot.copies()
    assert copies.keys() == tensors.keys()
    for name, copy in copies.items():
        assert bits(copy) == before[name]
        assert (copy.shape, copy.dtype) == (tensors[name].shape, tensors[name].dtype)


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor.T,
        lambda tensor: tensor[::2, 1:],
        lambda tensor: tensor[0, 0],
        lambda tensor: tensor[:, :1].expand(4, 9),
    ],
    ids=["transposed", "strided", "one number", "expanded"],
)  # fmt: skip
def test_views_are_copied_by_their_numbers(view: object) -> None:
    assert callable(view)
    whole = torch.arange(24.0).reshape(4, 6)
    expected = view(whole).clone()
    snapshot = Snapshot()
    snapshot.take({"view": view(whole)})
    whole.zero_()
    copy = snapshot.copies()["view"]
    assert torch.equal(copy, expected)
    assert copy.is_contiguous()


def test_parameters_are_copied_without_their_graph() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    snapshot = Snapshot()
    snapshot.take({"weight": parameter})
    assert not snapshot.copies()["weight"].requires_grad


def test_buffers_are_used_again() -> None:
    snapshot, tensor = Snapshot(), torch.arange(10.0)
    snapshot.take({"a": tensor, "b": tensor})
    first = {name: copy.data_ptr() for name, copy in snapshot.copies().items()}
    snapshot.take({"a": tensor + 1, "b": tensor + 2})
    copies = snapshot.copies()
    assert {name: copy.data_ptr() for name, copy in copies.items()} == first
    assert torch.equal(copies["b"], tensor + 2)
    assert sum(copy.nbytes for copy in copies.values()) == 80


def test_buffers_of_what_is_gone_or_has_grown_are_let_go() -> None:
    snapshot = Snapshot()
    snapshot.take({"a": torch.ones(10), "b": torch.ones(10)})
    snapshot.take({"a": torch.ones(20)})
    assert {name: copy.shape for name, copy in snapshot.copies().items()} == {"a": (20,)}
    snapshot.take({"a": torch.ones(20, dtype=torch.bfloat16)})
    assert snapshot.copies()["a"].dtype == torch.bfloat16
