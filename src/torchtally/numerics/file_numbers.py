"""What formats would lose of the numbers in files of tensors."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torchtally.errors import UsageError
from torchtally.number_formats import choose_formats
from torchtally.number_formats.statistics import tensor_statistics
from torchtally.numerics.files.folder import has_numbers, stored_tensors
from torchtally.views.tensor_numbers import TensorNumbers, chosen


def file_numbers(path: Path | str, formats: Sequence[str] = ()) -> TensorNumbers:
    """The tensors of a file or folder, each read twice in parts; by default in the usual formats.

    Raises UsageError for an unknown format or one of integers, for what cannot be read, and for a
    file without floating-point numbers.
    """
    rows = choose_formats(chosen(formats))
    tensors, left_out = [], Counter[str]()
    for tensor in stored_tensors(path):
        if has_numbers(tensor):
            tensors.append(tensor_statistics(tensor.name, tensor.dtype, tensor.parts, rows))
        else:
            left_out[tensor.dtype] += 1
    if not tensors:
        dtypes = ", ".join(left_out) or "no tensors"
        raise UsageError(f"{path}: contains no floating-point numbers ({dtypes}).")
    return TensorNumbers(str(path), rows, tuple(tensors), dict(left_out))
