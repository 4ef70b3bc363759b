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
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, normalization_bytes_per_s
from torchtally.timing.roofline.strided import CLOCK_HZ, finding_s
from torchtally.trace import Call, TensorSpec

BY_CUDNN = frozenset(("cudnn_batch_norm", "cudnn_batch_norm_backward"))
OWN = frozenset(
    (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_batch_norm_with_update",
        "native_batch_norm_backward",
        "batch_norm_backward",
    )
)

ON_CHIP_ELEMENTS = 16384
"""Of a channel, which cuDNN reads once: 64 images of 14 x 14 it does, of 28 x 28 it does not (the
names of its kernels in tests/truth/corpus)."""

CHANNELS_EACH = 64
"""Of a block of the kernels for channels last; where there are fewer, threads do nothing (so it is
in those that NVIDIA has published: C_ELEMENTS_PER_CTA in NVIDIA/apex, apex/contrib/csrc/groupbn/
batch_norm_add_relu.h). No fit: timm's steps with channels last on an RTX 3090 are 4.0 % (first
sample) and 7.4 % off in the median without it, and 3.1 and 4.8 % with it."""

FORWARD_BLOCK_BYTES_PER_S, BACKWARD_BLOCK_BYTES_PER_S = 20e9, 13e9
"""What one block of cuDNN's gets through, which holds up few channels: a fit to 64 channels of
112 x 112 and 64 images in float32 on an H100, 480 and 1226 us (tests/truth/corpus; 56 x 56, and 128
channels, had no part in it)."""

WELFORD_PER_S = 2.7e9
"""Elements that a multiprocessor takes into their channel's moments in a second, where channels lie
together: 102.8 M in bfloat16 take an H100 290 us (256 channels of 56 x 56, tests/truth/corpus; six
other shapes had no part in it)."""

OWN_BLOCK_PER_S, OWN_BACKWARD_BLOCK_PER_S = 1.05e9, 0.6e9
"""Elements that a block of PyTorch's own gets through in a second, which has a channel: 64 channels
of 8 x 133 x 133 take an H100 165 and 272 us in float32, 145 and 257 in bfloat16 (a bench)."""

OWN_BLOCKS = 4
"""Of 512 threads, which a multiprocessor has at once."""


def is_batch_norm(call: Call) -> bool:
    return call.plain_name in BY_CUDNN or call.plain_name in OWN


def batch_norm_s(call: Call, least_bytes: int, chip: Chip) -> float:
    """Seconds of one in training; `least_bytes` is what it moves if it reads everything once."""
    sources = sources_of(call)
    channels = max(1, sources[0].shape[1])
    rate, again_bytes = normalization_bytes_per_s(chip), sum(spec.bytes for spec in sources)
    is_last = sources[0].stride[1] == 1 and channels < sources[0].elements // sources[0].shape[0]
    if call.plain_name in BY_CUDNN:
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
