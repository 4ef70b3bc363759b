"""Batch norms in training: a sum over each channel, and a pass over all elements behind it.

cuDNN gives a channel to a block. Where the channels' elements lie one behind the other it reads
them twice, once for their moments (backward: for the sums of both gradients) and again for the
result, unless a channel's elements fit on chip (its kernels' names on an H100: bn_fw_tr_1C11_kernel
and bn_fw_tr_1C11_singleread). Where channels lie together all blocks work on all channels, and read
at the memory's bandwidth, twice, too (batchnorm_bwtr_nhwc_semiPersist, which keeps what fits on
chip: 24 sizes on an H100 take 0.95 of the measured times in the median so, tests/truth/corpus).
PyTorch's own kernels read twice in any case, and forward each element waits for the last one's
moments (Welford's, Normalization.cuh).
"""

from math import ceil

from torchtally.chips import Chip
from torchtally.timing.constants import (
    BACKWARD_BLOCK_BYTES_PER_S,
    CHANNELS_EACH,
    CLOCK_HZ,
    FORWARD_BLOCK_BYTES_PER_S,
    ON_CHIP_ELEMENTS,
    OWN_BACKWARD_BLOCK_PER_S,
    OWN_BLOCK_PER_S,
    OWN_BLOCKS,
    WELFORD_PER_S,
)
from torchtally.timing.roofline.composed import Formula, composed
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, normalization_bytes_per_s
from torchtally.timing.roofline.strided import finding_s
from torchtally.trace import Call, TensorSpec


def is_batch_norm(call: Call) -> bool:
    return composed(call.plain_name).formula in (Formula.BATCH_NORM, Formula.CUDNN_BATCH_NORM)


def batch_norm_s(call: Call, least_bytes: int, chip: Chip) -> float:
    """Seconds of one in training; `least_bytes` is what it moves if it reads everything once."""
    sources = sources_of(call)
    channels = max(1, sources[0].shape[1])
    rate, again_bytes = normalization_bytes_per_s(chip), sum(spec.bytes for spec in sources)
    is_last = sources[0].stride[1] == 1 and channels < sources[0].elements // sources[0].shape[0]
    if composed(call.plain_name).formula is Formula.CUDNN_BATCH_NORM:
        if is_last:
            waiting = CHANNELS_EACH * ceil(channels / CHANNELS_EACH) / channels
            return waiting * (least_bytes + again_bytes) / bandwidth_bytes_per_s(chip)
        is_kept = sources[0].elements // channels <= ON_CHIP_ELEMENTS
        moved_bytes = least_bytes + (0 if is_kept else again_bytes)
        forward, backward = FORWARD_BLOCK_BYTES_PER_S, BACKWARD_BLOCK_BYTES_PER_S
        by_blocks = channels * at_clock(backward if len(sources) > 1 else forward, chip)
        return moved_bytes / min(rate, by_blocks)
    elements, multiprocessors = sources[0].elements, chip.multiprocessors or 1
    if is_last:
        sums_s = 0.0 if len(sources) > 1 else finding_s(elements, WELFORD_PER_S, chip)
    else:
        per_block = OWN_BACKWARD_BLOCK_PER_S if len(sources) > 1 else OWN_BLOCK_PER_S
        sums_s = elements / min(channels, OWN_BLOCKS * multiprocessors) / at_clock(per_block, chip)
    return max(again_bytes / rate, sums_s) + least_bytes / rate


def sources_of(call: Call) -> list[TensorSpec]:
    """The input; backward the gradient of the output, too. They are read for the sums."""
    names = ("grad_output", "grad_out", "input", "self")
    whole = [spec for name in names for spec in call.tensors(name)[:1]]
    return whole if "backward" in call.plain_name else whole[:1]


def at_clock(per_s: float, chip: Chip) -> float:
    """What was measured on an H100, by another chip's clock."""
    return per_s * (chip.boost_clock_hz or CLOCK_HZ) / CLOCK_HZ
