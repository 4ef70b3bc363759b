"""Which operators that stream through memory are measured, each at a ladder of sizes.

n: elements of the result.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchtally.bench.work import Ladder, OpCall, work

aten = torch.ops.aten

Make = Callable[..., Tensor]
"""Random numbers of a shape."""

SMALLEST = 16
SIZES = (2**12, 2**15, 2**18, 2**20, 2**22, 9_000_000)
"""Elements: from what any cache holds to what no cache does. In float32 the last one is above
32 MiB, from where on glibc takes memory from the operating system and gives it back each time
(M_MMAP_THRESHOLD_MAX)."""
WIDTH = 512
"""Of a row, for what works on rows."""

Build = Callable[[int, Make], OpCall]


def rows(n: int) -> tuple[int, int]:
    return max(1, n // WIDTH), min(n, WIDTH)


def images(n: int) -> tuple[int, int, int, int]:
    """A batch of 8 x 64 channels, and pixels for the rest."""
    side = max(1, round((n / 512) ** 0.5))
    return 8, 64, side, side


ONE = (
    aten.neg.default, aten.sqrt.default, aten.rsqrt.default, aten.exp.default, aten.log.default,
    aten.sin.default, aten.cos.default, aten.tanh.default, aten.sigmoid.default, aten.relu.default,
    aten.relu_.default, aten.gelu.default, aten.silu.default, aten.zero_.default,
    aten.clone.default, aten.abs.default,
)  # fmt: skip
"""Of one tensor of positive numbers."""
TWO = (
    aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.sub.Tensor, aten.add_.Tensor,
    aten.mul_.Tensor, aten.gelu_backward.default, aten.silu_backward.default,
    aten.tanh_backward.default, aten.sigmoid_backward.default, aten.copy_.default,
    aten.maximum.default,
)  # fmt: skip
"""Of that and of ones."""


def one(overload: Any, n: int, make: Make) -> OpCall:
    return work(overload, make(n).abs_().add_(0.5))


def two(overload: Any, n: int, make: Make) -> OpCall:
    return work(overload, make(n).abs_().add_(0.5), torch.ones_like(make(n)))


SCALED: tuple[Build, ...] = (
    lambda n, make: work(aten.mul_.Tensor, make(n), 1.0),
    lambda n, make: work(aten.div.Tensor, make(n), 3.0),
    lambda n, make: work(aten.pow.Tensor_Scalar, make(n), 2),
    lambda n, make: work(aten.lerp_.Scalar, make(n), make(n), 0.1),
    lambda n, make: work(aten.addcmul_.default, make(n), make(n), make(n), value=1e-9),
    lambda n, make: work(
        aten.addcdiv_.default, make(n), make(n), make(n).abs_().add_(1), value=1e-9
    ),
    lambda n, make: work(aten.threshold_backward.default, make(n), make(n), 0),
)
"""With a number among their arguments."""


def add_bias(n: int, make: Make) -> OpCall:
    """A row added to every row."""
    shape = rows(n)
    return work(aten.add.Tensor, make(*shape), make(shape[1]))


CHOSEN: tuple[Build, ...] = (
    lambda n, make: work(aten.masked_fill.Scalar, make(n), make(n) > 0, 0.0),
    lambda n, make: work(aten.where.self, make(n) > 0, make(n), make(n)),
    lambda n, make: work(aten.bernoulli_.float, make(n), 0.9),
    lambda n, make: work(aten.native_dropout.default, make(n), 0.1, True),
)
"""By a mask, given or drawn."""


def softmax(forward: Any, backward: Any) -> tuple[Build, Build]:
    """Softmax over rows, and its gradient."""

    def gradient(n: int, make: Make) -> OpCall:
        tensor = make(*rows(n))
        return work(backward, tensor, forward(tensor, -1, False), -1, tensor.dtype)

    return lambda n, make: work(forward, make(*rows(n)), -1, False), gradient


def nll_loss_backward(n: int, make: Make) -> OpCall:
    tensor = make(*rows(n))
    target = torch.zeros(tensor.shape[0], dtype=torch.int64, device=tensor.device)
    total = torch.ones((), dtype=tensor.dtype, device=tensor.device)
    return work(aten.nll_loss_backward.default, total, tensor, target, None, 1, -100, total)


def layer_norm(n: int, make: Make) -> OpCall:
    tensor = make(*rows(n))
    scale, shift = make(tensor.shape[1]), make(tensor.shape[1])
    return work(aten.native_layer_norm.default, tensor, [tensor.shape[1]], scale, shift, 1e-5)


def layer_norm_backward(n: int, make: Make) -> OpCall:
    tensor = make(*rows(n))
    shape, scale, shift = [tensor.shape[1]], make(tensor.shape[1]), make(tensor.shape[1])
    _, mean, rstd = aten.native_layer_norm.default(tensor, shape, scale, shift, 1e-5)
    return work(
        aten.native_layer_norm_backward.default,
        torch.ones_like(tensor), tensor, shape, mean, rstd, scale, shift, [True, True, True],
    )  # fmt: skip


def batch_norm(n: int, make: Make) -> OpCall:
    tensor = make(*images(n))
    scale, mean, variance = make(64), make(64), make(64).abs()
    return work(
        aten.native_batch_norm.default, tensor, scale, scale, mean, variance, True, 0.1, 1e-5
    )


def batch_norm_backward(n: int, make: Make) -> OpCall:
    tensor = make(*images(n))
    scale, mean, variance = make(64), make(64), make(64).abs()
    _, saved_mean, saved_rstd = aten.native_batch_norm.default(
        tensor, scale, scale, mean, variance, True, 0.1, 1e-5
    )
    return work(
        aten.native_batch_norm_backward.default,
        torch.ones_like(tensor), tensor, scale, mean, variance, saved_mean, saved_rstd,
        True, 1e-5, [True, True, True],
    )  # fmt: skip


def max_pool(n: int, make: Make) -> OpCall:
    return work(aten.max_pool2d_with_indices.default, make(*images(n)), [3, 3], [2, 2], [1, 1])


def max_pool_backward(n: int, make: Make) -> OpCall:
    tensor = make(*images(n))
    window = ([3, 3], [2, 2], [1, 1])
    out, indices = aten.max_pool2d_with_indices.default(tensor, *window)
    return work(
        aten.max_pool2d_with_indices_backward.default, out, tensor, *window, [1, 1], False, indices
    )


REDUCTIONS: tuple[Build, ...] = (
    lambda n, make: work(aten.sum.default, make(n)),
    lambda n, make: work(aten.sum.dim_IntList, make(*rows(n)), [0]),  # a bias's gradient
    lambda n, make: work(aten.mean.dim, make(*rows(n)), [-1], True),
)


def embedding(n: int, make: Make) -> OpCall:
    table = make(8192, WIDTH)
    indices = torch.randint(8192, (max(1, n // WIDTH),), device=table.device)
    return work(aten.embedding.default, table, indices)


def embedding_backward(n: int, make: Make) -> OpCall:
    grad = make(max(1, n // WIDTH), WIDTH)
    indices = torch.randint(8192, (grad.shape[0],), device=grad.device)
    return work(aten.embedding_dense_backward.default, grad, indices, 8192, -1, False)


def concatenation(n: int, make: Make) -> OpCall:
    parts = [make(max(1, n // 3 // WIDTH), WIDTH) for _ in range(3)]
    return work(aten.cat.default, parts, -1)


def transposed_copy(n: int, make: Make) -> OpCall:
    """Rows become columns."""
    side = max(2, round(n**0.5))
    return work(aten.clone.default, make(side, side).t(), memory_format=torch.contiguous_format)


def heads_copy(n: int, make: Make) -> OpCall:
    """Attention's: heads and positions change places, the numbers of one head stay together."""
    tensor = make(4, max(1, n // (4 * 8 * 64)), 8, 64).transpose(1, 2)
    return work(aten.clone.default, tensor, memory_format=torch.contiguous_format)


def cast(n: int, make: Make) -> OpCall:
    tensor = make(n)
    other = torch.bfloat16 if tensor.dtype is torch.float32 else torch.float32
    return work(aten._to_copy.default, tensor, dtype=other)


def fused_adamw(n: int, make: Make) -> OpCall:
    """Eight parameters."""
    lists = [[make(max(1, n // 8)).abs() for _ in range(8)] for _ in range(4)]
    steps = [torch.ones((), device=tensor.device) for tensor in lists[0]]
    return work(
        aten._fused_adamw_.default, *lists, [], steps,
        lr=1e-9, beta1=0.9, beta2=0.95, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False,
    )  # fmt: skip


def foreach_add(n: int, make: Make) -> OpCall:
    lists = [[make(max(1, n // 8)) for _ in range(8)] for _ in range(2)]
    return work(aten._foreach_add_.List, *lists, alpha=1e-9)


def foreach_mul(n: int, make: Make) -> OpCall:
    return work(aten._foreach_mul_.Scalar, [make(max(1, n // 8)) for _ in range(8)], 1.0)


OPERATORS: tuple[Build, ...] = (
    *(partial(one, overload) for overload in ONE),
    *(partial(two, overload) for overload in TWO),
    *SCALED, add_bias, *CHOSEN,
    *softmax(aten._softmax.default, aten._softmax_backward_data.default),
    *softmax(aten._log_softmax.default, aten._log_softmax_backward_data.default),
    nll_loss_backward, layer_norm, layer_norm_backward, batch_norm, batch_norm_backward, max_pool,
    max_pool_backward, *REDUCTIONS, embedding, embedding_backward, concatenation, transposed_copy,
    heads_copy, cast,
)  # fmt: skip
ON_LISTS: tuple[Build, ...] = (fused_adamw, foreach_add, foreach_mul)
"""Each tensor of a list takes its time, however small."""


def operators(device: torch.device, dtype: torch.dtype, most_elements: int) -> Iterator[Ladder]:
    """Every operator at every size up to so many elements."""
    pool = torch.randn(1 << 20, device=device).to(dtype)

    def make(*shape: int) -> Tensor:
        """Copied from one pool: drawing millions of numbers takes longer than any operator."""
        n = prod(shape)
        return pool.repeat(-(-n // len(pool)))[:n].clone().view(shape)

    for build in (*OPERATORS, *ON_LISTS):
        sizes = tuple(partial(build, n, make) for n in SIZES if n <= most_elements)
        yield Ladder(sizes, None if build in ON_LISTS else partial(build, SMALLEST, make))
