"""Matrix products: tiles of the result, in waves over the multiprocessors.

M, K, N: (M, K) @ (K, N).  B: batch.  m, n: a tile of the result.  s: splits of K.

How libraries compute a product is published: the result is cut into tiles, each multiprocessor
computes one at a time over all of K, a tile that hangs over the edge costs as much as a whole one
(tile quantisation), and so does a last wave with few tiles in it (wave quantisation). Where tiles
are few, K is split and partial sums are added by a kernel of their own. Of the tile shapes and
splits that libraries have, the fastest is taken here; a library's heuristics may miss it. Sources:
NVIDIA, "Matrix Multiplication Background User's Guide", sections 2 and 3; CUTLASS, "Efficient GEMM
in CUDA" (split-K, pipelines).

Not modelled: clocks that fall under load beyond what the chip's published ceiling has in it, and
operands read from device memory more than once because the L2 cache is too small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, inf, prod

from torchtally.chips import Chip
from torchtally.chips.dtypes import NUMBERS_EACH
from torchtally.timing.constants import (
    ALIGNMENT_BYTES,
    BATCHED_VECTOR_TILES,
    BIAS_S,
    CLOCK_HZ,
    DEPTH_BYTES,
    EPILOGUE_PASSES,
    EPILOGUE_PASSES_SINCE_HOPPER,
    HOPPER_TILES,
    KERNEL_S,
    L2_BYTES_PER_CLOCK,
    LOAD_S,
    MATRIX_TILES,
    MIN_SPLIT_TERMS,
    PIECE_S,
    PIECES_PER_S,
    PRODUCT_S,
    ROWS_SHARE,
    SPLITS,
    STAGED_KIB,
    STAGES,
    STAGES_BEFORE_AMPERE,
    UNALIGNED_SHARE,
    UNSPLIT_TILES_EACH,
    VECTOR_SHARES_OF_TILES,
    WRITTEN_BYTES_PER_CLOCK,
)
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.rates import (
    achieved_flop_per_s,
    bandwidth_bytes_per_s,
    limited_byte_s,
    uses_matrix_unit,
)
from torchtally.timing.roofline.sustained import is_halved
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost
from torchtally.work.rule import result

Tile = tuple[int, int]


MATRIX_TILE_SHARES = dict.fromkeys(MATRIX_TILES, 1.0)


HOPPER_TILE_SHARES = dict.fromkeys((*MATRIX_TILES, *HOPPER_TILES), 1.0)

VECTOR_TILE_SHARES: dict[Tile, float] = {(m, n): share for m, n, share in VECTOR_SHARES_OF_TILES}
VECTOR_TILES = tuple(tile for tile in VECTOR_TILE_SHARES if tile != (64, 64))


@dataclass(frozen=True, slots=True)
class Product:
    """B products of (M, K) with (K, N)."""

    batch: int
    M: int
    N: int
    K: int
    dtype: str
    """Whose peak applies: the operands' dtype, or "tf32"."""
    itemsize_bytes: int
    row_alignment_bytes: int = ALIGNMENT_BYTES
    """The largest power of two that all rows of both operands and of the result begin on."""
    piece_bytes: int = DEPTH_BYTES
    """Of a row, what lies together: all of it, but in a convolution the channels of a position."""
    is_convolution: bool = False
    """cuDNN computes it, and not cuBLAS."""
    sums_rows: bool = False
    """What is summed along lies together in both operands."""

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.M * self.N * self.K

    @property
    def is_of_a_vector(self) -> bool:
        """Which waits for the matrix, whatever a tile would take."""
        return 1 in (self.M, self.N)


def product_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """The products of one call, one after the other."""
    compute_s, overhead_s = 0.0, with_bias_s(call, chip)
    products = products_of(call, cost)
    memory_s = cost.bytes / bandwidth_bytes_per_s(chip)
    for product in products:
        found_s, found_launches = product_s(product, chip, memory_s / len(products))
        compute_s += found_s + epilogue_s(product, chip)
        overhead_s += launch_s(product, chip) * found_launches
    if products and not products[0].is_of_a_vector:
        compute_s += cost.bytes * limited_byte_s(products[0].dtype, chip)
    return bound_kernel(compute_s=compute_s, memory_s=memory_s, overhead_s=overhead_s)


def launch_s(product: Product, chip: Chip) -> float:
    """Seconds of a product's kernel however little it does."""
    on_matrix_unit = uses_matrix_unit(product.dtype, chip)
    return PRODUCT_S.get(chip.sm.design, KERNEL_S) if on_matrix_unit else KERNEL_S


def epilogue_s(product: Product, chip: Chip) -> float:
    """Seconds in which tensor cores wait for their results to be written."""
    if not uses_matrix_unit(product.dtype, chip):
        return 0.0
    if not takes_older_kernel(product, chip):
        passes = EPILOGUE_PASSES_SINCE_HOPPER if chip.is_cuda else 0.0
    else:
        passes = 0.0 if is_halved(product.dtype, chip) else EPILOGUE_PASSES
    # Operands of 8 bits and less have a result of 16.
    result_bytes = product.batch * product.M * product.N * max(2, product.itemsize_bytes)
    return passes * result_bytes / bandwidth_bytes_per_s(chip)


def takes_older_kernel(product: Product, chip: Chip) -> bool:
    """Hopper's own kernels take in rows that begin on 16 bytes, and no others."""
    return (chip.is_cuda and not chip.sm.has_tma) or not is_aligned(product)


def with_bias_s(call: Call, chip: Chip) -> float:
    """Seconds that a linear layer takes besides its product, for its bias."""
    is_linear = call.plain_name == "addmm" and len(call.inputs[0].shape) == 1
    return BIAS_S if is_linear and chip.sm.has_tma else 0.0


@lru_cache(maxsize=4096)
def product_s(product: Product, chip: Chip, memory_s: float = 0.0) -> tuple[float, int]:
    """(seconds of arithmetic with the best tile and split, kernels launched for it).

    Adding up the splits' partial sums is in the seconds. At least flops / promised peak, always.
    Splits that make the arithmetic faster than `memory_s` gain nothing, and are not made.
    """
    if product.flops == 0:
        return 0.0, 1
    on_matrix_unit = uses_matrix_unit(product.dtype, chip)
    rate = achieved_flop_per_s(product.dtype, chip)
    rate *= alignment_share(product, chip) if on_matrix_unit else rows_share(product, chip)
    if chip.multiprocessors is None:
        return product.flops / rate, 1
    least_s = best_s = inf
    best_launches = 1
    splits_tried = splits_of(product, chip)
    for tile, share in tile_shares(product, chip).items():
        for splits in splits_tried:
            sums_s = partial_sums_s(product, splits, chip) if splits > 1 else 0.0
            after_s = launch_s(product, chip) * (splits > 1)
            if max(product.flops / (share * rate) + sums_s, memory_s) + after_s >= least_s:
                continue  # no number of whole tiles takes less than the FLOPs do
            found_s = tiled_s(product, tile, splits, share * rate, chip) + sums_s
            whole_s = max(found_s, memory_s) + after_s
            if whole_s < least_s:
                least_s, best_s, best_launches = whole_s, found_s, 1 + (splits > 1)
    return best_s, best_launches


def alignment_share(product: Product, chip: Chip) -> float:
    """Share of the rate that tensor cores reach when all rows begin on 16 bytes."""
    return 1.0 if is_aligned(product) or is_halved(product.dtype, chip) else UNALIGNED_SHARE


def rows_share(product: Product, chip: Chip) -> float:
    """Share of the rate outside of the matrix units, by how the operands lie in memory."""
    return ROWS_SHARE if product.sums_rows and chip.sm.has_async_copies else 1.0


def is_aligned(product: Product) -> bool:
    return product.row_alignment_bytes >= ALIGNMENT_BYTES


def tile_shares(product: Product, chip: Chip) -> Mapping[Tile, float]:
    """Tiles that the library chooses from, and what each reaches of the best rate."""
    if uses_matrix_unit(product.dtype, chip):
        has_more = chip.sm.has_tma and is_aligned(product) and not product.is_convolution
        return HOPPER_TILE_SHARES if has_more else MATRIX_TILE_SHARES
    tiles = VECTOR_TILES
    if product.batch > 1 and chip.is_cuda:
        tiles = BATCHED_VECTOR_TILES.get(chip.sm.design, tuple(VECTOR_TILE_SHARES))
    return {tile: VECTOR_TILE_SHARES[tile] for tile in tiles}


def splits_of(product: Product, chip: Chip) -> tuple[int, ...]:
    """Numbers of parts of K into which the library may cut it."""
    assert chip.multiprocessors is not None
    if product.batch > 1:
        return SPLITS[:1]
    is_matrix = uses_matrix_unit(product.dtype, chip)
    if not chip.sm.has_async_copies and is_matrix:
        return tuple(n for n in SPLITS if n == 1 or n * MIN_SPLIT_TERMS <= product.K)
    if is_matrix or not chip.sm.has_async_copies:
        return SPLITS
    m, n = min(VECTOR_TILE_SHARES)
    smallest = ceil(product.M / m) * ceil(product.N / n)
    return SPLITS if smallest <= UNSPLIT_TILES_EACH * chip.multiprocessors else SPLITS[:1]


def stages_of(product: Product, tile: Tile, chip: Chip) -> int:
    """Steps on their way from memory at once: on Hopper and its successors for data centers, as
    many as shared memory holds.
    """
    if not chip.sm.has_async_copies:
        return STAGES_BEFORE_AMPERE
    if not (chip.sm.has_wgmma or chip.sm.has_tcgen05) or takes_older_kernel(product, chip):
        return STAGES
    return max(STAGES, 1024 * STAGED_KIB // (sum(tile) * DEPTH_BYTES))


def tiled_s(product: Product, tile: Tile, splits: int, rate: float, chip: Chip) -> float:
    """Waves of whole tiles, at `rate` FLOP/s of the whole chip, and one filling of the pipeline;
    without tensor cores each wave begins and ends by itself.
    """
    assert chip.multiprocessors is not None
    m, n = tile
    packed = NUMBERS_EACH.get(product.dtype, 1)
    depth = max(1, packed * DEPTH_BYTES // product.itemsize_bytes)
    units = product.batch * ceil(product.M / m) * ceil(product.N / n) * splits
    waves = ceil(units / chip.multiprocessors)
    steps = ceil(ceil(product.K / depth) / splits)
    stages = stages_of(product, tile, chip)
    step_s = max(2 * m * n * depth * chip.multiprocessors / rate, LOAD_S / stages)
    if chip.boost_clock_hz is not None or chip.is_cuda:
        # Two multiprocessors of Blackwell multiply together, and take in half of B each (PTX ISA,
        # `tcgen05.mma` with `.cta_group::2`).
        rows = min(m, n) + max(m, n) / 2 if chip.sm.has_tcgen05 else m + n
        taken_in_bytes = rows * depth * product.itemsize_bytes / packed
        clock_hz = chip.boost_clock_hz or CLOCK_HZ
        step_s = max(step_s, taken_in_bytes / (L2_BYTES_PER_CLOCK * clock_hz))
    if is_fed_by_pieces(product, chip):
        pieces = (m + n) * depth * product.itemsize_bytes / product.row_alignment_bytes
        step_s = max(step_s, pieces / PIECES_PER_S)
    if product.piece_bytes < DEPTH_BYTES:
        pieces = max(m, n) * ceil(DEPTH_BYTES / product.piece_bytes)
        step_s = max(step_s, pieces * PIECE_S)
    if not uses_matrix_unit(product.dtype, chip) and chip.is_cuda:
        return waves * (steps * step_s + tile_ends_s(m * n * product.itemsize_bytes, chip))
    # The pipeline fills once: in the time of a load, or of all its steps where it is short.
    return waves * steps * step_s + (stages * step_s if stages <= STAGES else LOAD_S)


def is_fed_by_pieces(product: Product, chip: Chip) -> bool:
    on_matrix_unit = uses_matrix_unit(product.dtype, chip)
    return chip.sm.has_tma and on_matrix_unit and not is_aligned(product)


def tile_ends_s(result_bytes: int, chip: Chip) -> float:
    """Seconds in which a tile of such a result has nothing to multiply, without tensor cores."""
    assert chip.multiprocessors is not None
    lanes = chip.multiprocessors * chip.sm.float32_lanes
    clock_hz = achieved_flop_per_s("float32", chip) / (2 * lanes)
    return LOAD_S + result_bytes / (WRITTEN_BYTES_PER_CLOCK * clock_hz)


def partial_sums_s(product: Product, splits: int, chip: Chip) -> float:
    """Each split's result written in float32, and read again to be added."""
    partial_bytes = 4 * product.batch * product.M * product.N * splits
    return 2 * partial_bytes / bandwidth_bytes_per_s(chip)


# From calls to products ---------------------------------------------------------------------------

SECOND_IS_FIRST = ("addmm", "baddbmm", "addmv", "_addmm_activation", "addbmm", "addr")
"""Operators whose first tensor is added to the product of the second and third."""


def operands(call: Call) -> tuple[TensorSpec, TensorSpec | None]:
    """A and B; B is None for an operator of one tensor."""
    skipped = 1 if call.plain_name in SECOND_IS_FIRST else 0
    chosen = call.inputs[skipped : skipped + 2]
    return chosen[0], chosen[1] if len(chosen) > 1 else None


def products_of(call: Call, cost: Cost) -> tuple[Product, ...]:
    """The products that a call runs. Their FLOPs add up to the call's, but for rounding up.

    M and N are the result's last two dimensions and K follows from the FLOPs, so that one rule
    serves every operator; an operator with several products (a linear layer's backward) is taken
    as that many of equal size.
    """
    if call.plain_name == "_foreach_mm":
        count = len(call.outputs)
        pairs = zip(call.inputs[:count], call.inputs[count:], strict=False)
        return tuple(plain_product(call, left, right) for left, right in pairs)
    left, right = operands(call)
    dtype, itemsize_bytes = product_dtype(call, left)
    M, N, batch = matrix_of(result(call).shape)
    if is_folded(left, right, batch):
        # (B, M, K) @ (K, N): one matrix of B * M rows, as at::matmul and at::linear fold it.
        M, batch = M * batch, 1
    terms = max(1, M * N * batch)
    K = max(1, ceil(cost.flops / (2 * terms))) if cost.flops else 0
    alignment_bytes = row_alignment_bytes(
        [spec for spec in (left, right) if spec], result_row_bytes(M, N, itemsize_bytes), K
    )
    rows = sums_rows(left, right)
    return (Product(batch, M, N, K, dtype, itemsize_bytes, alignment_bytes, sums_rows=rows),)


def plain_product(call: Call, left: TensorSpec, right: TensorSpec) -> Product:
    dtype, itemsize_bytes = product_dtype(call, left)
    M, K = left.shape[-2:]
    N = right.shape[-1]
    row_bytes = result_row_bytes(M, N, itemsize_bytes)
    alignment_bytes = row_alignment_bytes([left, right], row_bytes, K)
    rows = sums_rows(left, right)
    return Product(1, M, N, K, dtype, itemsize_bytes, alignment_bytes, sums_rows=rows)


def sums_rows(left: TensorSpec, right: TensorSpec | None) -> bool:
    """What is summed along lies together in both operands."""
    if right is None or len(left.shape) < 2 or len(right.shape) < 2:
        return False
    return left.stride[-1] == 1 and right.stride[-2] == 1 and right.shape[-1] > 1


def matrix_of(shape: Sequence[int]) -> tuple[int, int, int]:
    """(M, N, B) of a result: a vector is one row, a number one row of one."""
    N = shape[-1] if shape else 1
    M = shape[-2] if len(shape) > 1 else 1
    return M, N, prod(shape[:-2])


def is_folded(left: TensorSpec, right: TensorSpec | None, batch: int) -> bool:
    """The second operand is one matrix for the whole batch."""
    return batch > 1 and right is not None and len(right.shape) <= 2 and len(left.shape) > 2


def product_dtype(call: Call, spec: TensorSpec) -> tuple[str, int]:
    """Dtype whose peak applies, and bytes of one element."""
    if spec.dtype == "float32" and call.literal("allow_tf32") is True:
        return "tf32", 4
    return spec.dtype, spec.itemsize_bytes


def result_row_bytes(M: int, N: int, itemsize_bytes: int) -> int:
    """Bytes from one row of the result to the next. One row and one column are vectors: aligned."""
    return ALIGNMENT_BYTES if 1 in (M, N) else N * itemsize_bytes


def row_alignment_bytes(specs: Sequence[TensorSpec], result_row_bytes: int, K: int) -> int:
    """The largest power of two, up to 16, that rows of both operands and of the result begin on.

    A row is what lies in memory without a gap; the next one begins at the other dimension's
    stride. A vector has one row only, which begins where the allocator put it: on a boundary.

    Rows that are summed along end on such a boundary, too, or are read in pieces no longer than the
    boundary: (65536, 50257) @ (50257, 768) in bfloat16 takes an H100 38.9 ms (a kernel for rows of
    any length, cutlass_75_..._align1) with rows 50304 apart. Its transpose @ (65536, 768), whose
    rows of 50257 are not summed along, takes 9.6 (cuBLAS 13.0, PyTorch 2.11).
    """
    rows = [
        (size, step, spec.itemsize_bytes)
        for spec in specs
        if len(spec.shape) > 1
        for size, step in zip(spec.shape[-2:], spec.stride[-2:], strict=True)
        if size > 1
    ]
    strides = [step * itemsize_bytes for _, step, itemsize_bytes in rows if step > 1]
    ends = [K * itemsize_bytes for size, step, itemsize_bytes in rows if step == 1 and size == K]
    return gcd(ALIGNMENT_BYTES, result_row_bytes, *strides, *ends)
