"""Detects the format of a token file from its first bytes, the files beside it, and its name.

In order: a magic number at byte 0; an index or a description beside the file; a dtype in the file
name; the dtype given by the user. A headerless file does not tell how wide its ids are, and the
wrong width reads without an error, so nothing is assumed.
"""

import os
import re
from pathlib import Path

from torchtally.errors import UsageError, check_choice
from torchtally.train.data.description import dtype_in_description
from torchtally.train.data.headers import (
    LLM_C_HEADER,
    NPY_MAGIC,
    NPY_MOST_HEADER_BYTES,
    llm_c_file,
    llm_c_magic,
    npy_file,
)
from torchtally.train.data.megatron import MAGIC as MEGATRON_MAGIC
from torchtally.train.data.megatron import index_beside, megatron_file
from torchtally.train.data.token_file import LITTLE_ENDIAN, Format, TokenFile, read_beginning

OTHERS = {
    b"PAR1": "a Parquet file, usually of text. Tokenize its text: tally data prepare",
    b"\xff\xff\xff\xff": "an Arrow stream, as datasets.save_to_disk writes it. Save its input_ids "
    "with numpy.save, row by row",
    b"PK\x03\x04": "a zip file (.npz, .pt). Save its token ids with numpy.save",
}
"""Magic numbers of common formats that are not supported."""

DTYPE_IN_NAME = re.compile(rf"(?<![a-z0-9])({'|'.join(LITTLE_ENDIAN)})(?![a-z0-9])")
SHORT_HEADER_BYTES = max(LLM_C_HEADER.size, 16)


def token_file(path: str, *, dtype: str | None = None, format: Format | None = None) -> TokenFile:
    """The token file at `path`; `dtype` and `format` override detection.

    Raises UsageError if it cannot be read, is inconsistent or empty, contradicts the arguments, or
    has an unknown dtype.
    """
    if dtype is not None:
        check_choice("unknown dtype of token ids", dtype, LITTLE_ENDIAN)
    start, size_bytes = read_beginning(path, SHORT_HEADER_BYTES)
    if size_bytes == 0:
        raise UsageError(f"{path}: byte 0: the file is empty. Create it again, or omit it.")
    file = _read_as(format or _format(path, start, dtype), path, start, size_bytes, dtype)
    if dtype is not None and file.dtype != dtype:
        raise UsageError(
            f"{path}: its {file.format} header says {file.dtype}, not {dtype}. Omit the dtype, "
            "or use --format raw if these bytes are not a header."
        )
    if file.tokens == 0:
        raise UsageError(f"{path}: byte {file.offset_bytes}: no tokens. Omit the file.")
    return file


def _format(path: str, start: bytes, dtype: str | None) -> Format:
    if llm_c_magic(start) is not None:
        return Format.LLM_C
    if llm_c_magic(start, order=">") is not None:
        raise UsageError(
            f"{path}: byte 0: an llm.c header in big-endian order. Create the file again on a "
            "little-endian machine, or swap its bytes: numpy.fromfile(PATH, '>u4')."
        )
    if start.startswith(NPY_MAGIC):
        return Format.NPY
    if start.startswith(MEGATRON_MAGIC):
        return Format.MEGATRON
    for magic, what in OTHERS.items():
        if start.startswith(magic):
            raise UsageError(f"{path}: byte 0: {what}.")
    if dtype is None and index_beside(path) is not None:
        return Format.MEGATRON
    return Format.RAW


def _read_as(
    format: Format, path: str, start: bytes, size_bytes: int, dtype: str | None
) -> TokenFile:
    match format:
        case Format.LLM_C:
            return llm_c_file(path, start, size_bytes)
        case Format.NPY:
            return npy_file(path, read_beginning(path, NPY_MOST_HEADER_BYTES + 12)[0], size_bytes)
        case Format.MEGATRON:
            index = index_beside(path)
            if index is None:
                raise UsageError(f"{path}: no Megatron index ({Path(path).stem}.idx) beside it.")
            return megatron_file(index)
        case Format.RAW:
            return _raw_file(path, size_bytes, dtype)


def _raw_file(path: str, size_bytes: int, dtype: str | None) -> TokenFile:
    name = os.path.basename(path)
    match = DTYPE_IN_NAME.search(name.lower())
    id_dtype = dtype or dtype_in_description(path) or (match[1] if match else None)
    if id_dtype is None:
        raise UsageError(
            f"{path}: byte 0: no header gives the dtype of the ids. Use --dtype: uint16 for "
            "nanoGPT's files, uint16 or uint32 for OLMo's, depending on the vocabulary size."
        )
    file = TokenFile(path, Format.RAW, id_dtype, 0)
    tokens, rest_bytes = divmod(size_bytes, file.token_bytes)
    if rest_bytes:
        raise UsageError(
            f"{path}: byte {size_bytes - rest_bytes}: {rest_bytes} bytes are left over after "
            f"{tokens} ids of {id_dtype}. It is truncated, or has another --dtype."
        )
    return TokenFile(path, Format.RAW, id_dtype, tokens)
