"""Token files with a header: llm.c's and NumPy's.

Layouts are taken from the readers that define them: llm.c `dataloader.h` and `data_common.py`;
NumPy Enhancement Proposal 1 and `numpy/lib/format.py`.
"""

import io
import math
import struct
from tokenize import TokenError

from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from torchtally.errors import UsageError
from torchtally.train.data.token_file import LITTLE_ENDIAN, Format, TokenFile

LLM_C_HEADER = struct.Struct("<256i")
LLM_C_DTYPES = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""By the magic number: the header's version, and the dtype of the ids."""
LLM_C_OTHERS = {
    20240522: "multiple-choice questions",
    20240326: "a model's weights",
    20240327: "a model's state for debugging",
}
LLM_C_MOST_TOKENS = 2**31 - 1
"""The token count is an int32."""

NPY_MAGIC = b"\x93NUMPY"
NPY_MOST_HEADER_BYTES = 65536
NPY_READERS = {1: read_array_header_1_0, 2: read_array_header_2_0, 3: read_array_header_2_0}
"""NumPy's own. Version 3 is 2 with names of fields in UTF-8, which token ids do not have."""


def llm_c_magic(start: bytes, *, order: str = "<") -> int | None:
    """The magic number of any llm.c file; None for other files."""
    number: int = struct.unpack(f"{order}i", start[:4].ljust(4, b"\0"))[0]
    return number if number in LLM_C_DTYPES or number in LLM_C_OTHERS else None


def llm_c_file(path: str, start: bytes, size_bytes: int) -> TokenFile:
    """An llm.c file, from its first 1024 bytes. Raises UsageError if truncated or inconsistent."""
    magic = llm_c_magic(start)
    if magic is None:
        raise UsageError(f"{path}: byte 0: not an llm.c header. Read it as raw ids with a dtype.")
    if magic in LLM_C_OTHERS:
        raise UsageError(
            f"{path}: byte 0: {magic} marks {LLM_C_OTHERS[magic]}, not tokens to train on."
        )
    if len(start) < LLM_C_HEADER.size:
        raise UsageError(
            f"{path}: byte {len(start)}: the file ends inside its header of {LLM_C_HEADER.size} "
            "bytes. It is truncated: copy or create it again."
        )
    version, dtype = LLM_C_DTYPES[magic]
    found_version, tokens = LLM_C_HEADER.unpack_from(start)[1:3]
    if found_version != version:
        raise UsageError(
            f"{path}: byte 4: version {found_version} of format {magic}; only "
            f"{version} is supported."
        )
    if tokens < 0:
        raise UsageError(
            f"{path}: byte 8: {tokens} tokens. The count overflowed its 32 bits: split the "
            f"data into files of at most {LLM_C_MOST_TOKENS} tokens."
        )
    file = TokenFile(path, Format.LLM_C, dtype, tokens, LLM_C_HEADER.size)
    return check_token_count(file, size_bytes, "byte 8: the header")


def npy_file(path: str, start: bytes, size_bytes: int) -> TokenFile:
    """A .npy file, from its first bytes, which contain the header. Raises UsageError.

    An array of several dimensions is read row by row.
    """
    stream = io.BytesIO(start)
    try:
        read = NPY_READERS.get(version := read_magic(stream)[0])
        if read is None:
            raise ValueError(f"version {version} of the format; 1 to 3 are supported")
        shape, fortran_order, kind = read(stream, NPY_MOST_HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, TokenError) as error:
        raise UsageError(
            f"{path}: byte {stream.tell()}: not the header of an array of numbers ({error}). "
            "Save the array again."
        ) from error
    dtype = next((name for name, code in LITTLE_ENDIAN.items() if kind.str[1:] == code[-2:]), None)
    if dtype is None or kind.str.startswith(">"):
        remedy = (
            "it is big-endian: save it as little-endian, numpy.save(PATH, a.astype('<u4'))"
            if dtype is not None
            else f"token ids have one of the dtypes {', '.join(LITTLE_ENDIAN)}"
        )
        raise UsageError(f"{path}: byte 10: dtype {kind.str!r}; {remedy}.")
    if fortran_order and len(shape) > 1:
        raise UsageError(
            f"{path}: byte 10: it is stored column by column (fortran_order). "
            "Save it row by row: numpy.save(PATH, numpy.ascontiguousarray(a))."
        )
    file = TokenFile(path, Format.NPY, dtype, math.prod(shape), stream.tell())
    return check_token_count(file, size_bytes, "byte 10: the header")


def check_token_count(file: TokenFile, size_bytes: int, who: str) -> TokenFile:
    """The file, if its size matches its token count. Raises UsageError."""
    if file.end_bytes == size_bytes:
        return file
    difference = size_bytes - file.end_bytes
    what = (
        f"{-difference} bytes are missing: it is truncated. Copy or create it again"
        if difference < 0
        else f"{difference} bytes follow: it has another format or is unfinished. "
        "Create it again, or read it as raw ids with a dtype"
    )
    raise UsageError(
        f"{file.path}: {who} declares {file.tokens} tokens of {file.token_bytes} bytes, so the "
        f"file should end at byte {file.end_bytes}, but ends at byte {size_bytes}. {what}."
    )
