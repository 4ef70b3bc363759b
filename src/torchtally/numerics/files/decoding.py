"""Bytes of a dtype as numbers that NumPy has a type for."""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from torchtally.number_formats import FORMATS, FloatLayout
from torchtally.numerics.files.stored import Array

NUMPY = ("float16", "float32", "float64")
"""Floating-point dtypes that NumPy has."""


def decoder(dtype: str) -> "Decoder | None":
    """How bytes of torch's dtype become numbers; None for what is no floating-point number, and
    for packed formats.
    """
    return DECODERS.get(dtype)


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype that has a decoder."""
    return 1 if dtype.startswith("float8") else np.dtype(STORED.get(dtype, dtype)).itemsize


STORED = {"bfloat16": "uint16"}


def _bfloat16(raw: bytes) -> Array:
    """The upper half of a float32."""
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


@cache
def _table(name: str) -> Array:
    layout = FORMATS[name].layout
    assert isinstance(layout, FloatLayout)
    return np.array([float(layout.decode(code)) for code in range(256)], np.float32)


def _fp8(name: str) -> "Decoder":
    return lambda raw: _table(name)[np.frombuffer(raw, np.uint8)]


def _plain(dtype: str) -> "Decoder":
    return lambda raw: np.frombuffer(raw, np.dtype(dtype).newbyteorder("<"))


Decoder = Callable[[bytes], Array]

DECODERS: Mapping[str, Decoder] = {
    **{dtype: _plain(dtype) for dtype in NUMPY},
    "bfloat16": _bfloat16,
    "float8_e4m3fn": _fp8("fp8_e4m3"),
    "float8_e5m2": _fp8("fp8_e5m2"),
}
