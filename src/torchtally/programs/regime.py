"""Regimes: the sizes and the chips within which a run is the same program."""

from math import gcd

from torchtally.chips import Chip
from torchtally.programs.labels import HEAD_DIM, HEAD_DIMS, SEQUENCE, UNITS, WINDOW
from torchtally.programs.sizes import Symbols


def regime(sizes: Symbols) -> str:
    """The regime of these sizes, as text: all in it run the operators of one program.

    It says what `labels.recordings_for` keeps to: sizes of one, powers of two up to a tile, the
    attention kernel of the head dim, and whether a window is shorter than the sequence, or as long.
    """
    words = [
        f"{symbol} {1 if size == 1 else f'{gcd(size, UNITS.get(symbol, 1))}n'}"
        for symbol, size in sorted(sizes.items())
    ]
    if HEAD_DIM in sizes:
        words.append(f"head_dim to {next(most for most in HEAD_DIMS if sizes[HEAD_DIM] <= most)}")
    if WINDOW in sizes and sizes[WINDOW] <= sizes[SEQUENCE]:
        words.append("windows" if sizes[WINDOW] < sizes[SEQUENCE] else "windows filled")
    return ", ".join(words)


LARGE_HEADS = 192
"""Beyond this head dim some chips train without flash attention."""


def kernels_of(chip: Chip, sizes: Symbols) -> str:
    """Text that chips share which run the same operators at these sizes: PyTorch chooses attention
    by capabilities, and cuBLAS's workspace is a storage.
    """
    if not chip.is_cuda:
        return chip.name
    sm = chip.sm
    capabilities = {
        "bfloat16": sm.has_bfloat16,
        "tensor cores": sm.has_tensor_cores,
        "efficient attention": sm.has_efficient_attention,
        "flash attention": sm.has_flash_attention,
        "cudnn first": sm.prefers_cudnn_attention,
        "large heads": sm.trains_large_heads or sizes.get(HEAD_DIM, 0) <= LARGE_HEADS,
    }
    words = [word for word, has_it in capabilities.items() if has_it]
    return ", ".join([*words, f"workspace {sm.blas_workspace_bytes}"])
