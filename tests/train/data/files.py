"""Token files written by hand, byte by byte, as the formats are described."""

import struct
from collections.abc import Sequence
from pathlib import Path

LETTERS = {"uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i",
           "uint64": "Q", "int64": "q"}  # fmt: skip


def packed(ids: Sequence[int], dtype: str, order: str = "<") -> bytes:
    return struct.pack(f"{order}{len(ids)}{LETTERS[dtype]}", *ids)


def write_raw(path: Path, ids: Sequence[int], dtype: str = "uint16", order: str = "<") -> str:
    path.write_bytes(packed(ids, dtype, order))
    return str(path)


def llm_c(ids: Sequence[int], magic: int = 20240520, version: int = 1, count: int | None = None,
          dtype: str = "uint16") -> bytes:  # fmt: skip
    header = struct.pack("<3i", magic, version, len(ids) if count is None else count)
    return header.ljust(1024, b"\0") + packed(ids, dtype)


def npy(ids: Sequence[int], descr: str = "<u2", dtype: str = "uint16", version: int = 1,
        shape: str | None = None, fortran: bool = False) -> bytes:  # fmt: skip
    text = (
        f"{{'descr': '{descr}', 'fortran_order': {fortran}, "
        f"'shape': {shape or f'({len(ids)},)'}, }}"
    ).encode()
    size = "<H" if version == 1 else "<I"
    before = 8 + struct.calcsize(size)
    text += b" " * (-(before + len(text) + 1) % 64) + b"\n"
    magic = b"\x93NUMPY" + bytes([version, 0])
    return magic + struct.pack(size, len(text)) + text + packed(ids, dtype)


def index(lengths: Sequence[int], documents: Sequence[int], code: int = 8, item_bytes: int = 2,
          pointers: Sequence[int] | None = None, modes: bool = False,
          version: int = 1) -> bytes:  # fmt: skip
    begins = [item_bytes * sum(lengths[:at]) for at in range(len(lengths))]
    begins = begins if pointers is None else list(pointers)
    return (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", version, code, len(lengths), len(documents))
        + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(begins)}q", *begins)
        + struct.pack(f"<{len(documents)}q", *documents)
        + (b"\0" * len(lengths) if modes else b"")
    )


def write_megatron(folder: Path, ids: Sequence[int], table: bytes, dtype: str = "uint16") -> str:
    (folder / "corpus.idx").write_bytes(table)
    return write_raw(folder / "corpus.bin", ids, dtype)
