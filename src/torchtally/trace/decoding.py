"""What the msgpack of a body costs in memory once it is decoded, before it is decoded.

A file of a megabyte can unpack to a gigabyte, and that to seventy gigabytes of Python objects. Each
byte of msgpack that can begin an object is counted with what that object takes, wherever it stands:
also within texts and numbers, so that the sum is an upper bound (two to three times what a trace
of a training takes), found without walking the structure.
"""

import os

WORD = 8
"""A pointer to the element, in the tuple or record that holds it."""
COSTS = (
    # The first byte of an object (github.com/msgpack/msgpack/blob/master/spec.md, "Overview"), and
    # bytes in CPython on 64 bits, with its allocator's rounding up to 16.
    (bytes([*range(0x90, 0xA0), 0xDC, 0xDD]), 64),  # arrays: tuples with the collector's header
    (bytes([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB]), 64),  # texts
    (bytes([*range(0x80, 0x90), 0xDE, 0xDF]), 240),  # maps
    (bytes(range(0xCA, 0xD4)), 32),  # numbers of more than seven bits
)
CHUNK_BYTES = 1 << 20

ALLOWANCE_BYTES = 256 << 20
"""What any file may take."""
MOST_PER_PACKED_BYTE = 500
"""And besides for each of its bytes. By this bound a training's trace takes 94 to 96, one of a
single operator 60,000 times 261; a file of zeros compressed as far as zlib can, 74,000."""


def decoded_bytes_at_most(body: bytes) -> int:
    """An upper bound of the memory that decoding takes."""
    view = memoryview(body)
    chunks = (bytes(view[at : at + CHUNK_BYTES]) for at in range(0, len(body), CHUNK_BYTES))
    return WORD * len(body) + sum(map(_cost, chunks))


def _cost(chunk: bytes) -> int:
    return sum(cost * (len(chunk) - len(chunk.translate(None, heads))) for heads, cost in COSTS)


def allowed_bytes(packed_bytes: int) -> int:
    """What decoding a file of so many bytes may take."""
    return ALLOWANCE_BYTES + MOST_PER_PACKED_BYTE * packed_bytes


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
