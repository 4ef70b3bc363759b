"""Products that a compiler computes by a template of its own: inductor's, in Triton.

M, K, N: (M, K) @ (K, N).  m, n, k: a tile of the result, and what it takes in of K at a time.

The tile is known, where a library's is not (`products.py`): one block of threads computes m x n of
the result, over all of K, k at a time, with `stages` of these in shared memory. A multiprocessor
holds as many blocks as its shared memory, registers and threads suffice for, and the blocks of a
product come in rounds. In each round a step over k takes the longest of

- the multiplications of all blocks that share the multiprocessor,
- what they take in, at the rate at which the L2 cache serves one multiprocessor,
- waiting for a load, which is asked for `stages - 1` steps before.

What is fused behind the product is computed on the tile, while the tensor cores of its block wait.

`benchmarks/published_templates.py` holds this against inductor's own timings of its choices.
"""

from dataclasses import replace
from math import ceil, sqrt

from torchtally.chips import Chip
from torchtally.chips.capabilities import Capability
from torchtally.timing.constants import (
    ACCUMULATORS_BESIDE,
    CONVOLUTION_TIMES,
    KERNEL_S,
    MATRIX_SHARES,
    MOST_REGISTERS,
    PIECES_PER_S,
    REGISTERS,
    TEMPLATE_L2_BYTES_PER_CLOCK,
    TEMPLATE_LATENCY_S,
    TEMPLATE_STAGES_BEFORE_AMPERE,
    VECTOR_LOADS,
    VECTOR_SHARE,
)
from torchtally.timing.roofline.convolutions import convolution_kernel
from torchtally.timing.roofline.fused import instructions_s
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.products import (
    Product,
    alignment_share,
    is_fed_by_pieces,
    products_of,
)
from torchtally.timing.roofline.rates import (
    achieved_flop_per_s,
    bandwidth_bytes_per_s,
    uses_matrix_unit,
)
from torchtally.trace import Call, Tile
from torchtally.work import Cost, Kind, cost_of, heart_of

MMA_SYNC_SHARE = 1.0


THREADS_PER_WARP = 32


def is_template(call: Call) -> bool:
    """A compiler's template of a product or a convolution, whose tile is known."""
    return call.fused is not None and call.fused.tile is not None


def template_kernel(call: Call, kind: Kind, cost: Cost, chip: Chip) -> Kernel:
    """A product and what is fused with it, in tiles of `call.fused.tile`."""
    heart, tile = heart_of(call), call.fused.tile if call.fused is not None else None
    assert heart is not None
    assert tile is not None
    if kind is Kind.CONVOLUTION:
        library = convolution_kernel(heart, cost_of(heart)[1], chip)
        return replace(library, seconds=CONVOLUTION_TIMES * library.seconds)
    products = products_of(heart, cost_of(heart)[1])
    compute_s = sum(template_s(product, tile, chip) for product in products)
    return bound_kernel(
        compute_s=compute_s + instructions_s(call, chip),
        memory_s=cost.bytes / bandwidth_bytes_per_s(chip),
        overhead_s=KERNEL_S,
    )


def template_s(product: Product, tile: Tile, chip: Chip) -> float:
    """Seconds for all rounds of blocks; at least its FLOPs at the rate of the library's best."""
    rate = achieved_flop_per_s(product.dtype, chip) * rate_share(product, tile, chip)
    if chip.multiprocessors is None or not chip.is_cuda:
        return product.flops / rate
    blocks = product.batch * ceil(product.M / tile.rows) * ceil(product.N / tile.columns)
    resident = resident_blocks(product, tile, chip.sm)
    steps = ceil(product.K / tile.depth)
    rounds, rest = divmod(blocks, resident * chip.multiprocessors)
    whole_s = steps * step_s(product, tile, resident, rate, chip)
    last = ceil(rest / chip.multiprocessors)
    last_s = steps * step_s(product, tile, last, rate, chip) if last else 0.0
    return rounds * whole_s + last_s


def rate_share(product: Product, tile: Tile, chip: Chip) -> float:
    """Share of the rate that the library's best kernels reach."""
    if not uses_matrix_unit(product.dtype, chip):
        elements = tile.rows * tile.columns / (THREADS_PER_WARP * tile.warps)
        return min(1.0, VECTOR_SHARE / (1 + VECTOR_LOADS / sqrt(elements)))
    share = MATRIX_SHARES.get(chip.sm.matrix_instruction, MMA_SYNC_SHARE)
    return share * alignment_share(product, chip)


def resident_blocks(product: Product, tile: Tile, limits: Capability) -> int:
    """That a multiprocessor holds at once: at least the one that it was compiled for."""
    threads = THREADS_PER_WARP * tile.warps
    registers = min(MOST_REGISTERS, tile.rows * tile.columns / threads + ACCUMULATORS_BESIDE)
    return max(
        1,
        min(
            limits.shared_kib * 1024 // shared_bytes(product, tile, limits),
            limits.threads // threads,
            int(REGISTERS / (threads * registers)),
        ),
    )


def shared_bytes(product: Product, tile: Tile, limits: Capability) -> int:
    """Shared memory of one block: both operands' part of each step that is there."""
    stages = tile.stages if limits.has_async_copies else 1
    return max(1, stages * step_bytes(product, tile))


def step_bytes(product: Product, tile: Tile) -> int:
    """That a block takes in."""
    return (tile.rows + tile.columns) * tile.depth * product.itemsize_bytes


def step_s(product: Product, tile: Tile, blocks: int, rate: float, chip: Chip) -> float:
    """Seconds of so many blocks on one multiprocessor, at `rate` FLOP/s of the whole chip."""
    assert chip.multiprocessors is not None
    stages = tile.stages
    if not chip.sm.has_async_copies:
        stages = min(stages, TEMPLATE_STAGES_BEFORE_AMPERE)
    multiplied_s = 2 * tile.rows * tile.columns * tile.depth * chip.multiprocessors / rate
    # One stage alone: a block asks for its next step when it is done with the last.
    waited_s = (
        TEMPLATE_LATENCY_S / (stages - 1) if stages > 1 else TEMPLATE_LATENCY_S + multiplied_s
    )
    taken_in_s = 0.0
    if chip.boost_clock_hz is not None:
        bytes_per_s = TEMPLATE_L2_BYTES_PER_CLOCK * chip.boost_clock_hz
        taken_in_s = step_bytes(product, tile) / bytes_per_s
    if is_fed_by_pieces(product, chip):
        pieces = step_bytes(product, tile) / product.row_alignment_bytes
        taken_in_s = max(taken_in_s, pieces / PIECES_PER_S)
    return max(blocks * multiplied_s, blocks * taken_in_s, waited_s)
