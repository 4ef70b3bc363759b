"""Constants of predicted times: each name of `constants.toml`, with its value.

The table says what each is, its unit and its source, and of a fit what it was fitted on and what
was held out. Not in it: `sustained.FAMILIES` and `fused.INSTRUCTIONS`, beside which their sources
stand, and NCCL's own tables (`network/generation.py`, `ways.py`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

TABLE = Path(__file__).with_name("constants.toml")
ROW = re.compile(r"^\[\w+\.(\w+)\]\nvalue = (.+?)\nunit = ", re.M | re.S)

Tiles = tuple[tuple[int, int], ...]
Pair = tuple[float, float]


def values(text: str) -> dict[str, Any]:
    """Values by name.

    `tomllib` takes 17 ms for the table, which every command would wait for; values are in the part
    of TOML that is JSON, but for the `=` of inline tables. A test holds this to tomllib's reading.
    """
    rows = ", ".join(f'"{name}": {value}' for name, value in ROW.findall(text))
    decoded = msgspec.json.decode("{" + re.sub(r"(\w+) = ", r'"\1": ', rows) + "}")
    return {name: frozen(value) for name, value in decoded.items()}


def frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: frozen(part) for key, part in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value


globals().update(values(TABLE.read_text(encoding="utf-8")))

ACCUMULATING_PUT: int
ALIGNMENT_BYTES: int
AMPERE_SHARES: Pair
BATCHED_VECTOR_TILES: Mapping[str, Tiles]
BLACKWELL_NATIVE_SHARES: Pair
BLACKWELL_NATIVE_SPECIALS: Pair
BLACKWELL_SHARES: Pair
BLACKWELL_ULTRA_NATIVE_SHARES: Pair
BLACKWELL_ULTRA_NATIVE_SPECIALS: Pair
BLOCKS_OF_1024: int
CLOUD_ISSUE_US: Pair
DEPTH_BYTES: int
EFFICIENT_BLOCK: int
EFFICIENT_OF_FLASH_SHARES: Pair
EFFICIENT_ON_HOPPER_SHARES: Pair
EMBEDDING_SORTED: int
EMBEDDING_SORTS_ABOVE: int
ESTIMATED_ISSUE_S: Mapping[str, float]
FFT_PASSES: int
FIRST_OF_FLASH_SHARES: Pair
FLASH_BLOCK: int
FLEX_OF_FLASH_SHARES: Pair
FOREACH_CHUNK: int
HEAD_DIMS: tuple[int, ...]
HOPPER_NATIVE_DROP_SPECIALS: Pair
HOPPER_NATIVE_SHARES: Pair
HOPPER_NATIVE_SPECIALS: Pair
HOPPER_SHARES: Pair
HOPPER_TILES: Tiles
LL_BETWEEN_OF_AMD: Pair
LL_BETWEEN_OTHERS: Pair
MATRIX_SHARES: Mapping[str, float]
MATRIX_TILES: Tiles
MIN_SPLIT_TERMS: int
NEAREST: int
NODE_TIMES_AMPERE: Mapping[str, Any]
NODE_TIMES_BLACKWELL: Mapping[str, Any]
NODE_TIMES_HOPPER: Mapping[str, Any]
NODE_TIMES_PCIE: Mapping[str, Any]
NORM_THREADS: int
OF_16_BITS: Mapping[str, float]
ON_CHIP_ROW_BYTES: int
PANEL: int
POOLED_TAPS: int
PRODUCT_S: Mapping[str, float]
QUEUED_LAUNCHES: int
RADIX_BITS: int
ROWS_BYTES_PER_S_BEFORE_AMPERE: Pair
ROWS_BYTES_PER_S_SINCE_AMPERE: Pair
SAFE_SOFTMAX_MARKS: int
SAFE_SOFTMAX_PASSES: int
SCALED_BLOCKS_MS: Pair
SCORE_PASSES: int
SENDS_LL_BYTES: int
SPARSE_SHARES: Mapping[str, tuple[tuple[int, float], ...]]
SPLITS: tuple[int, ...]
STAGED_KIB: int
STAGES: int
STAGES_BEFORE_AMPERE: int
TEMPLATE_STAGES_BEFORE_AMPERE: int
TENSOR_CORE_CHANNELS: int
UNSPLIT_TILES_EACH: int
VECTOR_BYTES: int
VECTOR_SHARES_OF_TILES: tuple[tuple[int, int, float], ...]

if TYPE_CHECKING:  # all others are floats

    def __getattr__(name: str) -> float: ...
