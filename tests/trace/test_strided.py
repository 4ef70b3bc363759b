"""Strided tensors by hand, and against torch on tensors of any strides."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.trace.strided import StridedTensor, storage_name


def strided(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, elements: int = 12
) -> StridedTensor:
    return StridedTensor(shape, strides, offset, "float32", 4, 0, 4 * elements)


def test_a_transposed_window_by_hand() -> None:
    """arange(12).view(3, 4).T[1:]: 1 5 9 / 2 6 10 / 3 7 11."""
    window = strided((3, 3), (1, 4), 1)
    assert [window.place(index) for index in window.indices()] == [1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert window.formula == "1 + i + 4 j"
    assert (window.elements, window.bytes, window.storage_elements) == (9, 36, 12)
    assert window.contiguous_strides == (3, 1)
    assert not window.is_contiguous
    assert window.storage_elements_used == 9


def test_formulas_leave_out_what_adds_nothing() -> None:
    assert strided((), ()).formula == "0"
    assert strided((1, 3), (7, 1)).formula == "j"
    assert strided((4, 3), (0, 2), 5).formula == "5 + 2 j"
    assert strided((2,) * 9, (1,) * 9).formula.startswith("i0 + i1 + ")


def test_repeated_and_overlapping_elements() -> None:
    repeated = strided((4, 3), (0, 1))
    assert repeated.repeats
    assert (repeated.elements, repeated.storage_elements_used) == (12, 3)
    windows = strided((10, 3), (1, 1))  # unfold: elements overlap, but are not the same
    assert not windows.repeats
    assert windows.storage_elements_used is None
    assert strided((0, 3), (3, 1)).storage_elements_used == 0


def test_storages_have_letters() -> None:
    assert [storage_name(number) for number in (0, 25, 26)] == ["A", "Z", "S26"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4), st.integers(0, 3))
def test_layouts_are_those_of_torch(dimensions: list[tuple[int, int]], offset: int) -> None:
    shape = tuple(size for size, _ in dimensions)
    strides = tuple(stride for _, stride in dimensions)
    storage = torch.arange(64)
    tensor = storage.as_strided(shape, strides, offset)
    facts = strided(shape, strides, offset, 64)
    assert facts.is_contiguous == tensor.is_contiguous()
    assert [facts.place(index) for index in facts.indices()] == tensor.flatten().tolist()
    assert facts.elements == tensor.numel()
    used = facts.storage_elements_used
    assert used is None or used == len(set(tensor.flatten().tolist()))
