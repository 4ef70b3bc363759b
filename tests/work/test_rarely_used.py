"""A sum for each of the formulas that models rarely need."""

from collections.abc import Callable

import pytest
import torch

from tests.work.calls import call, given, recorded
from torchtally.trace import Call
from torchtally.work import Cost, cost_of

aten = torch.ops.aten
x, y = torch.rand(4, 8), torch.rand(4, 8)
n, f = 32, 128  # elements, and their bytes
image = torch.rand(2, 3, 8, 8)  # 384 elements
square, right = torch.eye(6), torch.ones(6, 2)  # 144 and 48 bytes
tall = torch.rand(6, 3)  # 72 bytes
pivots = torch.arange(1, 7, dtype=torch.int32)
ids = torch.arange(6)  # 48 bytes
zeros = torch.zeros(4, dtype=torch.long)  # 32 bytes
theta = torch.rand(2, 2, 3)

RAN: list[tuple[Callable[[], object], Cost]] = [
    (
        lambda: aten.replication_pad1d_backward(torch.rand(2, 3, 6), torch.rand(2, 3, 4), [1, 1]),
        Cost(36, 144, 96),
    ),
    (
        lambda: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 0, 0, 9),
        Cost(6 * n, f, f + n),
    ),
    (lambda: aten.masked_scatter_(x.clone(), x > 2, y), Cost(0, n + f, f)),
    (lambda: aten.put_(x.clone(), ids, torch.rand(6), True), Cost(6, 48 + 24 + 24, 24)),
    # two bags of 3 rows: each of the 6 gets its bag's gradient
    (
        lambda: aten._embedding_bag_dense_backward(
            torch.rand(2, 8), ids, ids // 3, torch.tensor([3, 3]), ids[:0], 10, False, 0, None
        ),
        Cost(48, 64 + 48 + 48 + 16, 320),
    ),
    (
        lambda: aten._embedding_bag_per_sample_weights_backward(
            torch.rand(2, 8), torch.rand(10, 8), ids, ids[:2], ids // 3, 0
        ),
        Cost(96, 64 + 192 + 48 + 16 + 48, 24),
    ),
    # a point of a 5 x 5 grid is two rows of three terms
    (lambda: aten.affine_grid_generator(theta, [2, 3, 5, 5], False), Cost(6 * 100, 48, 400)),
    (lambda: aten.upsample_nearest2d_backward(image, [8, 8], [2, 3, 4, 4]), Cost(384, 1536, 384)),
    # each dimension's filter of 2 is widened to 4
    (
        lambda: aten._upsample_bilinear2d_aa_backward(
            image[:, :, :4, :4], [4, 4], [2, 3, 8, 8], False
        ),
        Cost(2 * 96 * 8, 384, 1536),
    ),
    (
        lambda: aten.grid_sampler_2d_backward(
            image, image, torch.rand(2, 8, 8, 2), 0, 0, False, [True, True]
        ),
        Cost(2 * 2 * 4 * 384, 1536 * 2 + 1024, 1536 + 1024),
    ),
    # n = 6: 10 n^3, 25 n^3; 4 n^3 / 3; 2 n^3 / 3
    (lambda: aten.linalg_eig(square), Cost(5400, 144, 48 + 288)),
    (lambda: aten._linalg_eigvals(square), Cost(2160, 144, 48)),
    (lambda: aten._linalg_eigh(square, "L", False), Cost(288, 144, 24)),
    (lambda: aten.cholesky_inverse(square), Cost(144, 144, 144)),
    # p = 3, q = 6: 4 q p^2 - 4 p^3 / 3, and 4 q^2 p + 8 q p^2 + 9 p^3
    (lambda: aten._linalg_svd(tall, False, False), Cost(216 - 36, 72, 12)),
    (lambda: aten._linalg_svd(tall, True), Cost(432 + 432 + 243, 72, 144 + 12 + 36)),
    # p^2 (q - p/3) = 45: factored by 90; 4 m p k + p^2 k = 144 + 18
    (lambda: aten.linalg_lstsq(tall, right), Cost(90 + 162, 72 + 48, 24 + 8)),
    (lambda: aten.ormqr(tall, torch.ones(3), right), Cost(4 * 3 * 12, 72 + 12 + 48, 48)),
    (lambda: aten.linalg_lu_solve(square, pivots, right), Cost(2 * 36 * 2, 144 + 24 + 48, 48)),
    (lambda: aten._cholesky_solve_helper(right, square, False), Cost(144, 192, 48)),
    (lambda: aten.lu_unpack(square, pivots), Cost(0, 168, 432)),
    (lambda: aten.binary_cross_entropy_backward(x, x, y, None, 0), Cost(5 * n, 3 * f, f)),
    (lambda: aten.multi_margin_loss(x, zeros, 1, 1.0), Cost(4 * n, f + 32, 4)),
    (
        lambda: aten.multi_margin_loss_backward(torch.ones(()), x, zeros, 1, 1.0),
        Cost(3 * n, 4 + f + 32, f),
    ),
    (lambda: aten.soft_margin_loss(x, y), Cost(4 * n, 2 * f, 4)),
    (lambda: aten.soft_margin_loss_backward(x, x, y, 0), Cost(4 * n, 3 * f, f)),
    (lambda: aten._masked_softmax(x, x > 0, 1), Cost(6 * n, f + n, f)),
    (lambda: aten.matmul(x, y.t()), Cost(2 * 4 * 8 * 4, 2 * f, 64)),
    (lambda: aten._adaptive_avg_pool2d_backward(image[:, :, :1, :1], image), Cost(384, 24, 1536)),
    (lambda: aten._foreach_max([x, y]), Cost(2 * n, 2 * f, 8)),
    (lambda: aten.dist(x, y), Cost(3 * n, 2 * f, 4)),
    # 6 pairs of 8 coordinates
    (lambda: aten._pdist_forward(x), Cost(25 * 6, f, 24)),
    (
        lambda: aten._cdist_backward(torch.ones(4, 4), x, y, 1.0, torch.ones(4, 4)),
        Cost(4 * 16 * 8, 2 * f + 128, f),
    ),
    (lambda: aten.renorm(x, 2, 0, 1.0), Cost(3 * n, f, f)),
    (
        lambda: aten.max_unpool2d(
            x.view(1, 4, 2, 4), torch.zeros(1, 4, 2, 4, dtype=torch.long), [4, 4]
        ),
        Cost(0, 3 * f, 2 * f),
    ),
    (lambda: aten.unique_consecutive(torch.arange(8.0)), Cost(8, 32, 32)),
    (lambda: aten._standard_gamma_grad(x, y), Cost(n, 2 * f, f)),
]
UNDER_INFERENCE_MODE: list[tuple[Callable[[], object], Cost]] = [
    (lambda: aten.kl_div(x, y), Cost(4 * n, 2 * f, 4)),
    (lambda: aten.triplet_margin_loss(x, y, y), Cost(8 * n, 3 * f, 4)),
    (lambda: aten.cosine_embedding_loss(x, y, torch.ones(4)), Cost(6 * n, 2 * f + 16, 4)),
    (lambda: aten.cosine_similarity(x, y), Cost(6 * n + 12, 2 * f, 16)),
    (lambda: aten.pairwise_distance(x, y), Cost(4 * n + 4, 2 * f, 16)),
    (lambda: aten.msort(x), Cost(2 * n, f, f)),
    (lambda: aten.quantile(x, 0.5), Cost(5 * n + 3, f, 4)),
    (lambda: aten.fft_fft(x), Cost(5 * 4 * 8 * 3, f, 2 * f)),
    (lambda: aten.fft_rfft2(x), Cost(5 * 32 * 5 // 2, f, 8 * 20)),
    (lambda: aten.fft_fftshift(x), Cost(0, f, f)),
    # 16 samples padded to 24: 5 frames of 8 points: 60 each and a window's 8; 5 bins out
    (
        lambda: torch.stft(
            torch.ones(16), 8, 4, return_complex=True, pad_mode="constant", window=torch.ones(8)
        ),
        Cost(5 * 68, 96 + 32, 200),
    ),
]


@pytest.mark.parametrize(("run", "expected"), RAN)
def test_ran(run: Callable[[], object], expected: Cost) -> None:
    assert cost_of(recorded(run).calls[-1])[1] == expected


@pytest.mark.parametrize(("run", "expected"), UNDER_INFERENCE_MODE)
def test_composite(run: Callable[[], object], expected: Cost) -> None:
    with torch.inference_mode():
        assert cost_of(recorded(run).calls[-1])[1] == expected


WRITTEN: list[tuple[Call, Cost]] = [
    (
        call(
            "aten.fake_quantize_per_tensor_affine_cachemask_backward",
            [given("grad", 32), given("mask", 32, dtype="bool")],
            (32,),
        ),
        Cost(n, f + n, f),
    ),
    # SyncBatchNorm's pieces, on 384 elements of 3 channels
    (
        call("aten.batch_norm_stats", [given("input", 2, 3, 8, 8)], (3,), (3,)),
        Cost(4 * 384, 1536, 24),
    ),
    (
        call(
            "aten.batch_norm_gather_stats_with_counts",
            [
                given("input", 2, 3, 8, 8),
                given("mean", 4, 3),
                given("invstd", 4, 3),
                given("running_mean", 3),
                given("running_var", 3),
                given("counts", 4),
            ],
            (3,),
            (3,),
        ),
        Cost(72, 48 + 48 + 24 + 16, 24 + 24),
    ),
    (
        call(
            "aten.batch_norm_elemt", [given("input", 2, 3, 8, 8), given("weight", 3)], (2, 3, 8, 8)
        ),
        Cost(3 * 384, 1536 + 12, 1536),
    ),
    (
        call(
            "aten.batch_norm_backward_reduce", [given("grad_out", 384), given("input", 384)], (3,)
        ),
        Cost(4 * 384, 3072, 12),
    ),
    (
        call(
            "aten.batch_norm_backward_elemt", [given("grad_out", 384), given("input", 384)], (384,)
        ),
        Cost(6 * 384, 3072, 1536),
    ),
    (
        call(
            "aten._weight_norm_interface_backward",
            [given("grad_w", 32), given("saved_v", 32)],
            (32,),
        ),
        Cost(5 * n, 2 * f, f),
    ),
    (
        call(
            "aten._amp_update_scale_",
            [
                given("self", written=True),
                given("growth_tracker", written=True),
                given("found_inf"),
            ],
        ),
        Cost(2, 12, 8),
    ),
    (
        call("aten._thnn_fused_gru_cell", [given("input_gates", 2, 18)], (2, 6), (2, 30)),
        Cost(16 * 12, 144, 48 + 240),
    ),
    (
        call("aten._thnn_fused_gru_cell_backward", [given("grad_hy", 2, 6)], (2, 18)),
        Cost(16 * 12, 48, 144),
    ),
    (
        call("aten._thnn_fused_lstm_cell_backward_impl", [given("cx", 2, 6)], (2, 24)),
        Cost(22 * 12, 48, 192),
    ),
    (
        call(
            "aten.matmul_backward",
            [given("grad", 2, 4), given("self", 2, 3), given("other", 3, 4)],
            (2, 3),
            (3, 4),
            mask=(True, True),
        ),
        Cost(2 * 48, 32 + 24 + 48, 24 + 48),
    ),
    (
        call("aten.affine_grid_generator_backward", [given("grad", 2, 5, 5, 2)], (2, 2, 3)),
        Cost(6 * 100, 400, 48),
    ),
    (
        call(
            "aten._ctc_loss_backward",
            [given("grad", 1), given("log_probs", 10, 1, 5), given("log_alpha", 1, 10, 7)],
            (10, 1, 5),
        ),
        Cost(12 * 70 + 3 * 50, 4 + 200 + 280, 200),
    ),
    (
        call("aten.cumprod_backward", [given("grad", 4, 8), given("input", 4, 8)], (4, 8)),
        Cost(3 * n, 2 * f, f),
    ),
]


@pytest.mark.parametrize(("one", "expected"), WRITTEN, ids=lambda value: getattr(value, "name", ""))
def test_written(one: Call, expected: Cost) -> None:
    assert cost_of(one)[1] == expected
