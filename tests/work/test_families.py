"""One sum, or a few, for each family of operators that is not matmul work."""

from collections.abc import Callable

import pytest
import torch

from tests.work.calls import Recording, call, cost, given, recorded
from torchtally.work import Cost, Kind, cost_of

aten = torch.ops.aten
x, y = torch.rand(4, 8), torch.rand(4, 8)
n = 32
weight, bias = torch.ones(8), torch.ones(8)
grad_rows = torch.rand(4, 1)
mask = x > 0.5
image = torch.rand(2, 3, 8, 8)  # 384 elements
Case = tuple[Callable[[], object], Cost]

REDUCTIONS: list[Case] = [
    (lambda: aten.sum(x), Cost(n, 4 * n, 4)),
    (lambda: aten.sum(x, [1]), Cost(n, 4 * n, 16)),
    (lambda: aten.mean(x, [1]), Cost(n + 4, 4 * n, 16)),
    (lambda: aten.amax(x, [1]), Cost(n, 4 * n, 16)),
    (lambda: aten.max(x, 1), Cost(n, 4 * n, 16 + 32)),
    (lambda: aten.maximum(x, y).max(), Cost(n, 4 * n, 4)),
    (lambda: aten.argmax(x, 1), Cost(n, 4 * n, 32)),
    (lambda: aten.var(x, [1]), Cost(4 * n + 4, 4 * n, 16)),
    (lambda: aten.var_mean(x, [1]), Cost(4 * n + 4, 4 * n, 32)),
    (lambda: aten.prod(x), Cost(n, 4 * n, 4)),
    (lambda: aten.linalg_vector_norm(x), Cost(2 * n + 1, 4 * n, 4)),
    (lambda: aten._foreach_norm([x, y]), Cost(4 * n + 2, 8 * n, 8)),
    (lambda: aten.any(mask), Cost(n, n, 1)),
    (lambda: aten.cumsum(x, 1), Cost(n, 4 * n, 4 * n)),
    (lambda: aten.logsumexp(x, [1]), Cost(4 * n + 4, 4 * n, 16)),
    (lambda: aten.count_nonzero(x, [1]), Cost(n, 4 * n, 32)),
    (lambda: aten.aminmax(x), Cost(2 * n, 4 * n, 8)),
    (lambda: aten.equal(x, x), Cost(n, 8 * n, 0)),
    (lambda: aten.trace(x), Cost(4, 16, 4)),
    (lambda: aten.sum(x.to(torch.complex64)), Cost(2 * n, 8 * n, 8)),
    # 4 x 4 pairs of 8 coordinates
    (lambda: aten._cdist_forward(x, y, 1.0, None), Cost(3 * 16 * 8 + 16, 8 * n, 64)),
    # 2 * 3 images, 4 x 4 windows of 2 x 2
    (lambda: aten.avg_pool2d(image, [2, 2]), Cost(96 * 4, 4 * 384, 4 * 96)),
    (lambda: aten.max_pool2d_with_indices(image, [2, 2]), Cost(384, 4 * 384, 12 * 96)),
    (lambda: aten._adaptive_avg_pool2d(image, [1, 1]), Cost(384, 4 * 384, 4 * 6)),
    (
        lambda: aten.avg_pool2d_backward(
            image[:, :, :4, :4], image, [2, 2], [2, 2], [0, 0], False, True, None
        ),
        Cost(96 * 4, 4 * 96, 4 * 384),
    ),
]
NORMALIZATIONS: list[Case] = [
    (lambda: aten._softmax(x, 1, False), Cost(5 * n, 4 * n, 4 * n)),
    (lambda: aten._log_softmax(x, 1, False), Cost(5 * n, 4 * n, 4 * n)),
    (lambda: aten._softmax_backward_data(x, y, 1, torch.float32), Cost(4 * n, 8 * n, 4 * n)),
    # 5n and a weight and a bias; mean and rstd of 4 rows written
    (
        lambda: aten.native_layer_norm(x, [8], weight, bias, 1e-5),
        Cost(7 * n, 4 * n + 64, 4 * n + 32),
    ),
    (lambda: aten.native_layer_norm(x, [8], None, None, 1e-5), Cost(5 * n, 4 * n, 4 * n + 32)),
    # xhat 2, input 8, weight 2, bias 1
    (
        lambda: aten.native_layer_norm_backward(
            x, y, [8], grad_rows, grad_rows, weight, bias, [True, True, True]
        ),
        Cost(13 * n, 8 * n + 32 + 32, 4 * n + 64),
    ),
    (
        lambda: aten.native_layer_norm_backward(
            x, y, [8], grad_rows, grad_rows, None, None, [True, False, False]
        ),
        Cost(9 * n, 8 * n + 32, 4 * n),
    ),
    # training: 5n, weight and bias; 3 running means and variances read and written, 6 saved
    (
        lambda: aten.native_batch_norm(image, *(torch.ones(3) for _ in range(4)), True, 0.1, 1e-5),
        Cost(7 * 384, 4 * 384 + 48, 4 * 384 + 24 + 24),
    ),
    (
        lambda: aten._native_batch_norm_legit(
            image, *(torch.ones(3) for _ in range(4)), True, 0.1, 1e-5
        ),
        Cost(7 * 384, 4 * 384 + 48, 4 * 384 + 24 + 24),
    ),
    (
        lambda: aten._native_batch_norm_legit_no_training(
            image, *(torch.ones(3) for _ in range(4)), 0.1, 1e-5
        ),
        Cost(4 * 384, 4 * 384 + 48, 4 * 384),
    ),
    (lambda: aten._weight_norm_interface(x, grad_rows), Cost(3 * n, 4 * n + 16, 4 * n + 16)),
]
LOSSES: list[Case] = [
    (lambda: aten.mse_loss(x, y), Cost(3 * n, 8 * n, 4)),
    (lambda: aten.mse_loss(x, y, 0), Cost(2 * n, 8 * n, 4 * n)),
    (lambda: aten.mse_loss_backward(x, x, y, 0), Cost(3 * n, 12 * n, 4 * n)),
    (lambda: aten.binary_cross_entropy(x, y), Cost(9 * n, 8 * n, 4)),
    # 4 targets: 8 bytes each, and one log-probability of 8; loss and total weight written
    (
        lambda: aten.nll_loss_forward(x, torch.zeros(4, dtype=torch.long), None, 1, -100),
        Cost(8, 32 + 16, 8),
    ),
    (
        lambda: aten.nll_loss_backward(
            torch.ones(()), x, torch.zeros(4, dtype=torch.long), None, 1, -100, torch.ones(())
        ),
        Cost(4, 4 + 32 + 4, 4 * n),
    ),
]
ids = torch.arange(6)  # 48 bytes
table = torch.rand(10, 8)
INDEXING: list[Case] = [
    # six rows of 8: not the table's ten
    (lambda: aten.embedding(table, ids), Cost(0, 192 + 48, 192)),
    # 20 indices into 10 rows: the table once
    (lambda: aten.embedding(table, torch.zeros(20, dtype=torch.long)), Cost(0, 320 + 160, 640)),
    (
        lambda: aten.embedding_dense_backward(torch.rand(6, 8), ids, 10, -1, False),
        Cost(48, 192 + 48, 320),
    ),
    (lambda: aten.index_select(table, 0, ids), Cost(0, 192 + 48, 192)),
    (lambda: aten.index(table, [ids]), Cost(0, 192 + 48, 192)),
    (lambda: aten.gather(table, 0, ids.view(1, 6)), Cost(0, 24 + 48, 24)),
    (lambda: aten.take(table, ids), Cost(0, 24 + 48, 24)),
    # in place: six rows written, the source read; a sum reads them first
    (lambda: aten.index_copy_(table.clone(), 0, ids, torch.rand(6, 8)), Cost(0, 240, 192)),
    (lambda: aten.index_add_(table.clone(), 0, ids, torch.rand(6, 8)), Cost(48, 432, 192)),
    # a new tensor: the table copied as well
    (lambda: aten.index_add(table, 0, ids, torch.rand(6, 8)), Cost(48, 560, 320)),
    (
        lambda: aten.scatter_(table.clone(), 0, ids.view(1, 6), torch.rand(1, 6)),
        Cost(0, 48 + 24, 24),
    ),
    (
        lambda: aten.scatter_add_(table.clone(), 0, ids.view(1, 6), torch.rand(1, 6)),
        Cost(6, 48 + 24 + 24, 24),
    ),
    (lambda: aten.scatter_(table.clone(), 0, ids.view(1, 6), 1.0), Cost(0, 48, 24)),
    (lambda: aten.index_put_(table.clone(), [ids], torch.rand(6, 8)), Cost(0, 240, 192)),
    (lambda: aten.index_put_(table.clone(), [ids], torch.rand(())), Cost(0, 52, 192)),
    (
        lambda: aten.index_put_(table.clone(), [ids], torch.rand(6, 8), True),
        Cost(48, 192 + 48 + 192, 192),
    ),
    (lambda: aten.index_put(table, [ids], torch.rand(6, 8)), Cost(0, 320 + 240, 320)),
    (lambda: aten.index_put_(table.clone(), [table[:, 0] >= 0], torch.zeros(())), Cost(0, 14, 320)),
    (lambda: aten.index_fill_(table.clone(), 0, ids, 0.0), Cost(0, 48, 192)),
    (lambda: aten.masked_select(x, torch.ones(4, 8) > 0), Cost(0, 5 * n, 4 * n)),
    (lambda: aten.nonzero(torch.ones(4)), Cost(0, 16, 32)),
    (
        lambda: aten.col2im(torch.rand(1, 4, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
        Cost(36, 144, 64),
    ),
    # two bags of three rows of 8
    (
        lambda: aten._embedding_bag(table, ids, torch.tensor([0, 3])),
        Cost(48, 192 + 48 + 16, 64 + 16 + 16),
    ),
]
COPIES: list[Case] = [
    (lambda: aten.clone(x), Cost(0, 4 * n, 4 * n)),
    (lambda: aten._to_copy(x, dtype=torch.bfloat16), Cost(0, 4 * n, 2 * n)),
    (lambda: aten.copy_(x.clone(), y), Cost(0, 4 * n, 4 * n)),
    (lambda: aten._foreach_copy_([x.clone()], [y]), Cost(0, 4 * n, 4 * n)),
    (lambda: aten.cat([x, y]), Cost(0, 8 * n, 8 * n)),
    (lambda: aten.constant_pad_nd(x, [0, 1]), Cost(0, 4 * n, 4 * 36)),
    (lambda: aten.repeat(x, [2, 1]), Cost(0, 4 * n, 8 * n)),
    (lambda: aten.flip(x, [0]), Cost(0, 4 * n, 4 * n)),
    (lambda: aten.roll(x, [1]), Cost(0, 4 * n, 4 * n)),
    (lambda: aten.tril(x), Cost(0, 4 * n, 4 * n)),
    (lambda: aten.fill_(x.clone(), 0.0), Cost(0, 0, 4 * n)),
    (lambda: aten.zero_(x.clone()), Cost(0, 0, 4 * n)),
    (lambda: aten._foreach_zero_([x.clone(), y.clone()]), Cost(0, 0, 8 * n)),
    (lambda: aten.zeros([4, 8]), Cost(0, 0, 4 * n)),
    (lambda: aten.zeros_like(x), Cost(0, 0, 4 * n)),
    (lambda: aten.new_zeros(x, [2]), Cost(0, 0, 8)),
    (lambda: aten.arange(4), Cost(0, 0, 32)),
    (lambda: aten.slice_backward(x, [8, 8], 0, 0, 4, 1), Cost(0, 4 * n, 8 * n)),
    (lambda: aten.select_backward(weight, [4, 8], 0, 0), Cost(0, 32, 4 * n)),
    # three rows of x, one of the other
    (lambda: aten.select_scatter(x, weight, 0, 0), Cost(0, 4 * n, 4 * n)),
    (lambda: aten.expand_copy(weight, [4, 8]), Cost(0, 32, 4 * n)),
    (lambda: aten.upsample_nearest2d(image, [16, 16]), Cost(0, 4 * 384, 16 * 384)),
]
RANDOM: list[Case] = [
    (lambda: aten.normal_(x.clone()), Cost(n, 0, 4 * n)),
    (lambda: aten.uniform_(x.clone()), Cost(n, 0, 4 * n)),
    (lambda: aten.randn([4, 8]), Cost(n, 0, 4 * n)),
    (lambda: aten.rand_like(x), Cost(n, 0, 4 * n)),
    (lambda: aten.bernoulli(x), Cost(n, 4 * n, 4 * n)),
    (lambda: aten.bernoulli_(x.clone(), 0.5), Cost(n, 0, 4 * n)),
    (lambda: aten.randperm(8), Cost(8, 0, 64)),
    # 4 rows of weights added up; 2 draws each, found among 8 by 3 compares
    (lambda: aten.multinomial(x, 2), Cost(n + 8 * 4, 4 * n, 64)),
    # draw, compare, mask, scale; the mask is a byte for each element
    (lambda: aten.native_dropout(x, 0.5, True), Cost(4 * n, 4 * n, 5 * n)),
]
SORTING: list[Case] = [
    (lambda: aten.sort(x), Cost(3 * n, 4 * n, 12 * n)),
    (lambda: aten.sort(x, 0), Cost(2 * n, 4 * n, 12 * n)),
    (lambda: aten.topk(x, 2), Cost(n, 4 * n, 12 * 8)),
    (lambda: aten.kthvalue(x, 2), Cost(n, 4 * n, 12 * 4)),
    (lambda: aten._unique2(torch.arange(32.0)), Cost(6 * n, 4 * n, 4 * n)),
    (lambda: aten.searchsorted(weight, x), Cost(3 * n, 4 * n + 32, 8 * n)),
    (lambda: aten.bucketize(x, weight), Cost(3 * n, 4 * n + 32, 8 * n)),
]
RESAMPLING: list[Case] = [
    (lambda: aten.upsample_bilinear2d(image, [16, 16], False), Cost(8 * 1536, 1536, 4 * 1536)),
    (
        lambda: aten.upsample_bicubic2d_backward(image, [8, 8], [2, 3, 4, 4], False),
        Cost(32 * 384, 4 * 384, 4 * 96),
    ),
    # halved: each dimension's filter of 2 is widened to 4
    (lambda: aten._upsample_bilinear2d_aa(image, [4, 4], False), Cost(16 * 96, 4 * 384, 4 * 96)),
]
z = torch.ones(4, 8, dtype=torch.complex64)
FFTS: list[Case] = [
    # 4 transforms of 8 points: 5 * 8 * 3 each
    (lambda: aten._fft_c2c(z, [1], 0, True), Cost(480, 8 * n, 8 * n)),
    # one of 32 points: 5 * 32 * 5
    (lambda: aten._fft_c2c(z, [0, 1], 0, True), Cost(800, 8 * n, 8 * n)),
    (lambda: aten._fft_r2c(x, [1], 0, True), Cost(240, 4 * n, 8 * 20)),
    (lambda: aten._fft_c2r(z[:, :5], [1], 0, 8), Cost(240, 8 * 20, 4 * n)),
]
square, right = torch.eye(6), torch.ones(6, 2)
tall = torch.rand(6, 3)
LINEAR_ALGEBRA: list[Case] = [
    (lambda: aten.linalg_cholesky_ex(square), Cost(72, 144, 148)),
    (lambda: aten.linalg_lu_factor_ex(square), Cost(144, 144, 144 + 24 + 4)),
    (lambda: aten.linalg_inv_ex(square), Cost(432, 144, 148)),
    # 2 * 9 * (6 - 1) to factor, as many to form Q
    (lambda: aten.linalg_qr(tall), Cost(180, 72, 72 + 36)),
    (lambda: aten._linalg_eigh(square), Cost(9 * 216, 144, 144 + 24)),
    (lambda: aten._linalg_svd(tall), Cost(14 * 54 + 8 * 27, 72, 72 + 12 + 36)),
    # LU 144, and 2 * 36 * 2
    (lambda: aten._linalg_solve_ex(square, right), Cost(288, 144 + 48, 48 + 144 + 24 + 4)),
    (lambda: aten.linalg_solve_triangular(square, right, upper=True), Cost(72, 144 + 48, 48)),
    (lambda: aten.linalg_cholesky_ex(torch.eye(6).expand(5, 6, 6)), Cost(360, 144, 5 * 148)),
]
FAMILIES = {
    Kind.REDUCTION: REDUCTIONS,
    Kind.NORMALIZATION: NORMALIZATIONS,
    Kind.LOSS: LOSSES,
    Kind.INDEXING: INDEXING,
    Kind.COPY: COPIES,
    Kind.RANDOM: RANDOM,
    Kind.SORTING: SORTING,
    Kind.ELEMENTWISE: RESAMPLING,
    Kind.FFT: FFTS,
    Kind.LINEAR_ALGEBRA: LINEAR_ALGEBRA,
}
CASES = [(kind, run, expected) for kind, cases in FAMILIES.items() for run, expected in cases]


@pytest.mark.parametrize(("kind", "run", "expected"), CASES)
def test_sum(kind: Kind, run: Callable[[], object], expected: Cost) -> None:
    assert cost_of(recorded(run).calls[-1]) == (kind, expected)


def test_softmax_of_a_transposed_tensor_moves_no_more() -> None:
    assert recorded(aten._softmax, x.t(), 0, False).total == Cost(5 * n, 4 * n, 4 * n)


def test_rms_norm() -> None:
    inputs = [given("input", 4, 8), given("weight", 8)]
    forward = call("aten._fused_rms_norm", inputs, (4, 8), (4, 1))
    assert cost_of(forward) == (Kind.NORMALIZATION, Cost(4 * n, 4 * n + 32, 4 * n + 16))
    # xhat 1, input 6, weight 2
    gradients = [given("grad_out", 4, 8), given("input", 4, 8), given("rstd", 4, 1)]
    backward = call("aten._fused_rms_norm_backward", [*gradients, given("weight", 8)], (4, 8), (8,))
    assert cost(backward) == Cost(9 * n, 8 * n + 16 + 32, 4 * n + 32)


def test_grid_sample_takes_four_taps() -> None:
    grid = torch.zeros(2, 5, 5, 2)
    total = recorded(aten.grid_sampler_2d, image, grid, 0, 0, False).total
    assert total == Cost(2 * 4 * 150, 4 * (384 + 100), 4 * 150)


def test_ctc_is_a_step_for_every_state_of_every_frame() -> None:
    log_probs = torch.rand(10, 1, 5).log_softmax(-1)
    with Recording() as recording:
        aten._ctc_loss(log_probs, torch.ones(1, 3, dtype=torch.long), [10], [3])
    (one,) = recording.named("aten._ctc_loss")
    assert cost(one).flops == 12 * 10 * 7  # 2 * 3 + 1 states
