"""Which reader a file has, and all files of a folder."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from torchtally.errors import UsageError
from torchtally.numerics.files.decoding import decoder
from torchtally.numerics.files.stored import StoredTensor

READERS = {
    ".safetensors": "safetensors_file",
    ".npy": "npy_file",
    ".gguf": "gguf_file",
    ".pt": "torch_file",
    ".pth": "torch_file",
    ".bin": "torch_file",
    ".ckpt": "torch_file",
}
"""A module with `tensors` by the end of a file's name."""
SUFFIXES = tuple(READERS)


def stored_tensors(path: Path | str) -> Iterator[StoredTensor]:
    """The tensors of a file, or of all files in a folder and below it.

    Raises UsageError for what cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        yield from _of_file(path)
        return
    files = sorted(each for each in path.rglob("*") if each.suffix in READERS and each.is_file())
    if not files:
        raise UsageError(f"{path}: contains no file of tensors ({', '.join(SUFFIXES)}).")
    for file in files:
        yield from _of_file(file)


def _of_file(path: Path) -> Iterator[StoredTensor]:
    if path.suffix not in READERS:
        raise UsageError(
            f"{path}: expected a file of tensors: its name ends in none of {', '.join(SUFFIXES)}."
        )
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    yield from import_module(f"{__package__}.{READERS[path.suffix]}").tensors(path)


def has_numbers(tensor: StoredTensor) -> bool:
    """Floating-point numbers, alone or in blocks of llama.cpp; not integers or packed codes."""
    return decoder(tensor.dtype) is not None or tensor.dtype.isupper()
