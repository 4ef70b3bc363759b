"""Memory that the flash-attention package's backward takes and gives back (Dao-AILab).

B: sequences.  S: queries.  T: keys.  H: query heads, H_kv: key heads.  D: head size.
"""

from torchtally.chips import Chip
from torchtally.memory.workspace.scratch import FLOAT_BYTES, rule
from torchtally.trace import Call

TILE = 128


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def head_rounded(D: int) -> int:
    return round_up(D, 32 if D <= 128 else 64)


def tokens_in_tiles(call: Call, tensor: str, offsets: str, tile: int) -> int:
    """Tokens of all sequences, each in whole tiles; packed ones with a tile more for each."""
    shape = call.tensor(tensor).shape
    if len(shape) == 4:
        return shape[0] * round_up(shape[1], tile)
    sequences = call.tensor(offsets).shape[0] - 1
    return round_up(shape[0] + sequences * tile, tile)


@rule("flash_attn.backward")
def version_2(call: Call, chip: Chip) -> tuple[int, ...]:
    """fp32 gradient of the queries; keys' and values' for all heads where heads share them
    (csrc/flash_attn/flash_api.cpp, `mha_bwd` and `mha_varlen_bwd`).
    """
    query, key = call.tensor("query"), call.tensor("key")
    H, D = query.shape[-2:]
    shape = query.shape
    packed = 0 if len(shape) == 4 else TILE * (call.tensor("cu_seqlens_q").shape[0] - 1)
    tokens = shape[0] * round_up(shape[1], TILE) if len(shape) == 4 else shape[0] + packed
    accumulated = tokens * H * head_rounded(D) * FLOAT_BYTES
    shared = key.shape[-2] != H
    expanded = key.elements // key.shape[-2] * H * key.itemsize_bytes if shared else 0
    return (accumulated, expanded, expanded)


@rule("flash_attn_3.backward")
def version_3(call: Call, chip: Chip) -> tuple[int, ...]:
    """Rows' sums, the log-sum-exp to the base of two, the fp32 gradient of the queries; of keys and
    values in fp32 where heads share them (hopper/flash_api.cpp, `mha_bwd`).
    """
    query, key = call.tensor("query"), call.tensor("key")
    H, D = query.shape[-2:]
    width = head_rounded(D)
    is_masked = call.literal("causal") is True or any(
        side not in (-1, None)
        for side in (call.literal("window_size_left"), call.literal("window_size_right"))
    )
    rows = 128 if width <= 64 else 80 if 96 < width <= 128 and not is_masked else 64
    columns = 128 if width <= 128 else 96 if width <= 192 else 80
    tokens = tokens_in_tiles(call, "query", "cu_seqlens_q", rows)
    keys = tokens_in_tiles(call, "key", "cu_seqlens_k", columns)
    rows_bytes = tokens * H * FLOAT_BYTES
    shared = key.shape[-2] != H
    of_keys = keys * key.shape[-2] * width * FLOAT_BYTES if shared else 0
    return (rows_bytes, rows_bytes, rows_bytes * width, of_keys, of_keys)
