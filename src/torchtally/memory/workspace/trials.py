"""What cuDNN's trials take besides: `torch.backends.cudnn.benchmark` runs every algorithm once.

Of each convolution that is new, PyTorch tries every algorithm whose workspace fits into what is
free, and gives the memory back afterwards (aten/src/ATen/native/cudnn/Conv_v8.cpp; emptyCache). So
trials are in nvidia-smi's peak, but neither in what is allocated nor in what is kept.

The largest workspace is that of the algorithm by Fourier transforms, which holds the spectra of
input, filter and result: padded to powers of two, half of each by symmetry, 8 bytes a number. It
takes images of up to 256 (cuDNN API, CUDNN_CONVOLUTION_FWD_ALGO_FFT), and steps of one place; what
others take by other algorithms is no more. The filter's are of all pairs of channels, whatever the
groups: convolutions of Xception took 5.5 GiB beside its 2.5 in itu-rad/GPUMemNet's table, where
this gives 8.5 at most. 18 of 19 trainings there are within what it allows.
"""

from math import prod

from torchtally.trace import Call

LONGEST_SIDE = 256
BYTES_OF_A_NUMBER = 8


def is_tried(call: Call) -> bool:
    """A convolution while the flag was set."""
    return call.literal("benchmark") is True


def trial_bytes(call: Call) -> int:
    """The most that a trial of the call may take, if so much is free."""
    weight, source = call.tensor("weight"), (call.tensors("input") or call.inputs)[0]
    sides, filter_sides = source.shape[2:], weight.shape[2:]
    if prod(filter_sides) == 1 or max(sides) > LONGEST_SIDE:
        return 0
    batch, channels, results = source.shape[0], source.shape[1], weight.shape[0]
    *first, last = (
        power_of_two(side + width - 1) for side, width in zip(sides, filter_sides, strict=True)
    )
    spectra = batch * channels + channels * results + batch * results
    return spectra * prod(first) * (last // 2 + 1) * BYTES_OF_A_NUMBER


def power_of_two(size: int) -> int:
    """The first that is no less."""
    return 1 << (size - 1).bit_length()
