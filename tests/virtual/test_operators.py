"""A wide choice of operators, forward and backward, against the host's own."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, FusedMovingAvgObsFakeQuantize

import torchtally
from tests.traces import accounted, ops, traced
from torchtally.runs.tracing_context import tracing
from torchtally.timing.targets import roofline
from torchtally.virtual import aliases
from torchtally.virtual.session import virtual_gpu

pytestmark = pytest.mark.one_case_in(3)


def real(device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, requires_grad=True)


def whole(device: str, limit: int, *shape: int) -> Tensor:
    return torch.randint(limit, shape, device=device)


def ones(device: str, *shape: int) -> Tensor:
    return torch.ones(*shape, device=device)


def least_squares(device: str, a: tuple[int, ...], b: tuple[int, ...]) -> Any:
    """By the driver that CUDA has."""
    return torch.linalg.lstsq(real(device, *a), real(device, *b), driver="gels")


def attention(device: str, **options: object) -> Tensor:
    module = nn.MultiheadAttention(16, 2, batch_first=True).to(device)
    x = real(device, 2, 5, 16)
    output: Tensor = module(x, x, x, **options)[0]
    return output


def evaluated_encoder(device: str) -> Tensor:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).to(device).eval()
    padding = torch.zeros(2, 5, dtype=torch.bool, device=device)
    with torch.no_grad():
        output: Tensor = model(real(device, 2, 5, 16), src_key_padding_mask=padding)
        return output


def transformer(device: str) -> Tensor:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).to(device)
    x = real(device, 2, 5, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=torch.device(device))
    output: Tensor = model(x, x, tgt_mask=mask)
    return output


def averaged(device: str) -> Tensor:
    model = nn.Linear(4, 4).to(device)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    average.update_parameters(model)
    output: Tensor = average(real(device, 2, 4))
    return output


def normed(device: str, norm) -> Tensor:
    output: Tensor = norm(nn.Linear(4, 4)).to(device)(real(device, 2, 4))
    return output


CALLS = {
    "attention with weights": lambda device: attention(device, need_weights=True),
    "attention with padding": lambda device: attention(
        device,
        key_padding_mask=torch.zeros(2, 5, dtype=torch.bool, device=device),
        need_weights=False,
    ),
    "transformer": transformer,
    "encoder in evaluation": evaluated_encoder,
    "averaged model": averaged,
    "weight_norm": lambda device: normed(device, nn.utils.parametrizations.weight_norm),
    "spectral_norm": lambda device: normed(device, nn.utils.parametrizations.spectral_norm),
    "fold": lambda device: F.fold(F.unfold(real(device, 1, 3, 8, 8), 3), (8, 8), 3),
    "adaptive softmax": lambda device: (
        nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 50])
        .to(device)(real(device, 8, 16), whole(device, 100, 8))
        .loss
    ),
    "embbag": lambda device: nn.EmbeddingBag(10, 4).to(device)(whole(device, 10, 3, 5)),
    "ctc": lambda device: F.ctc_loss(
        real(device, 20, 2, 10).log_softmax(-1),
        whole(device, 9, 2, 5) + 1,
        torch.full((2,), 20),
        torch.full((2,), 5),
    ),
    "grid": lambda device: F.grid_sample(
        real(device, 1, 3, 8, 8), real(device, 1, 4, 4, 2), align_corners=False
    ),
    "bilinear": lambda device: nn.Bilinear(3, 4, 5).to(device)(
        real(device, 2, 3), real(device, 2, 4)
    ),
    "adpool": lambda device: F.adaptive_avg_pool2d(real(device, 1, 3, 8, 8), 3),
    "admax": lambda device: F.adaptive_max_pool2d(real(device, 1, 3, 8, 8), 3),
    "lppool": lambda device: F.lp_pool2d(real(device, 1, 3, 8, 8), 2, 2),
    "fracpool": lambda device: F.fractional_max_pool2d(real(device, 1, 3, 8, 8), 2, output_size=4),
    "maxunpool": lambda device: F.max_unpool2d(
        *F.max_pool2d(real(device, 1, 1, 4, 4), 2, return_indices=True), 2
    ),
    "avgpool3": lambda device: F.avg_pool3d(real(device, 1, 2, 4, 4, 4), 2),
    "maxpool3": lambda device: F.max_pool3d(real(device, 1, 2, 4, 4, 4), 2),
    "pixshuf": lambda device: F.pixel_shuffle(real(device, 1, 4, 3, 3), 2),
    "chshuf": lambda device: F.channel_shuffle(real(device, 1, 4, 3, 3), 2),
    "convt3": lambda device: nn.ConvTranspose3d(2, 3, 3).to(device)(real(device, 1, 2, 4, 4, 4)),
    "convt1": lambda device: nn.ConvTranspose1d(2, 3, 3).to(device)(real(device, 1, 2, 8)),
    "depth": lambda device: nn.Conv2d(4, 4, 3, groups=4).to(device)(real(device, 1, 4, 8, 8)),
    "dil": lambda device: nn.Conv2d(4, 4, 3, dilation=2, padding="same").to(device)(
        real(device, 1, 4, 8, 8)
    ),
    "circ": lambda device: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular").to(device)(
        real(device, 1, 4, 8, 8)
    ),
    "refl": lambda device: F.pad(real(device, 1, 2, 5, 5), (1, 1, 1, 1), mode="reflect"),
    "repl": lambda device: F.pad(real(device, 1, 2, 5, 5), (1, 1, 1, 1), mode="replicate"),
    "inorm": lambda device: nn.InstanceNorm2d(3, affine=True).to(device)(real(device, 2, 3, 4, 4)),
    "gnorm": lambda device: nn.GroupNorm(2, 4).to(device)(real(device, 2, 4, 3, 3)),
    "lrn": lambda device: nn.LocalResponseNorm(2)(real(device, 1, 4, 3, 3)),
    "bn_eval": lambda device: nn.BatchNorm2d(3).to(device).eval()(real(device, 2, 3, 4, 4)),
    "syncbn": lambda device: nn.SyncBatchNorm(3).to(device)(real(device, 2, 3, 4, 4)),
    "alphad": lambda device: F.alpha_dropout(real(device, 4, 4), training=True),
    "fad": lambda device: F.feature_alpha_dropout(real(device, 2, 3, 4), training=True),
    "d2": lambda device: F.dropout2d(real(device, 2, 3, 4, 4)),
    "d1": lambda device: F.dropout1d(real(device, 2, 3, 4)),
    "rrelu": lambda device: F.rrelu(real(device, 4, 4), training=True),
    "gumbel": lambda device: F.gumbel_softmax(real(device, 4, 4), hard=True),
    "glu": lambda device: F.glu(real(device, 4, 4)),
    "hards": lambda device: F.hardswish(real(device, 4)),
    "mish": lambda device: F.mish(real(device, 4)),
    "celu": lambda device: F.celu(real(device, 4)),
    "selu": lambda device: F.selu(real(device, 4)),
    "softsh": lambda device: F.softshrink(real(device, 4)),
    "lsig": lambda device: F.logsigmoid(real(device, 4)),
    "thr": lambda device: F.threshold(real(device, 4), 0, 0),
    "hardt": lambda device: F.hardtanh(real(device, 4)),
    "lrelu": lambda device: F.leaky_relu(real(device, 4)),
    "elu": lambda device: F.elu(real(device, 4)),
    "nll2": lambda device: F.nll_loss(
        real(device, 2, 3, 4, 4).log_softmax(1), whole(device, 3, 2, 4, 4)
    ),
    "ce_smooth": lambda device: F.cross_entropy(
        real(device, 4, 5), whole(device, 5, 4), label_smoothing=0.1, ignore_index=0
    ),
    "ce_prob": lambda device: F.cross_entropy(real(device, 4, 5), real(device, 4, 5).softmax(-1)),
    "ce_w": lambda device: F.cross_entropy(
        real(device, 4, 5), whole(device, 5, 4), weight=torch.ones(5, device=device)
    ),
    "mlm": lambda device: F.multilabel_margin_loss(real(device, 2, 4), whole(device, 4, 2, 4)),
    "mlsm": lambda device: F.multilabel_soft_margin_loss(
        real(device, 2, 4), torch.ones(2, 4, device=device)
    ),
    "mm": lambda device: F.multi_margin_loss(real(device, 2, 4), whole(device, 4, 2)),
    "tml": lambda device: F.triplet_margin_loss(
        real(device, 2, 4), real(device, 2, 4), real(device, 2, 4)
    ),
    "gnll": lambda device: F.gaussian_nll_loss(
        real(device, 4), real(device, 4), torch.ones(4, device=device)
    ),
    "pnll": lambda device: F.poisson_nll_loss(real(device, 4), torch.ones(4, device=device)),
    "huber": lambda device: F.huber_loss(real(device, 4), real(device, 4)),
    "cos": lambda device: F.cosine_embedding_loss(
        real(device, 2, 4), real(device, 2, 4), torch.ones(2, device=device)
    ),
    "hinge": lambda device: F.hinge_embedding_loss(real(device, 4), torch.ones(4, device=device)),
    "bce": lambda device: F.binary_cross_entropy(
        real(device, 4).sigmoid(), torch.ones(4, device=device)
    ),
    "kl": lambda device: F.kl_div(real(device, 4), real(device, 4), log_target=True),
    "up_bic": lambda device: F.interpolate(
        real(device, 1, 2, 4, 4), scale_factor=2, mode="bicubic"
    ),
    "up_aa": lambda device: F.interpolate(
        real(device, 1, 2, 8, 8), size=4, mode="bilinear", antialias=True
    ),
    "up_tri": lambda device: F.interpolate(
        real(device, 1, 2, 4, 4, 4), scale_factor=2, mode="trilinear"
    ),
    "up_area": lambda device: F.interpolate(real(device, 1, 2, 8, 8), size=3, mode="area"),
    "up_lin": lambda device: F.interpolate(real(device, 1, 2, 8), scale_factor=2, mode="linear"),
    "up_ne": lambda device: F.interpolate(
        real(device, 1, 2, 8), scale_factor=2, mode="nearest-exact"
    ),
    "stft": lambda device: torch.stft(
        real(device, 400), 64, return_complex=True, window=torch.hann_window(64, device=device)
    ).abs(),
    "istft": lambda device: torch.istft(
        torch.stft(
            torch.randn(400, device=device),
            64,
            return_complex=True,
            window=torch.hann_window(64, device=device),
        ),
        64,
        window=torch.hann_window(64, device=device),
    ),
    "fft2": lambda device: torch.fft.ifft2(torch.fft.fft2(real(device, 4, 4))).real,
    "irfft": lambda device: torch.fft.irfft(torch.fft.rfft(real(device, 8))),
    "fftshift": lambda device: torch.fft.fftshift(real(device, 4)),
    "svd": lambda device: torch.linalg.svd(real(device, 4, 3), full_matrices=False)[1],
    "eigh": lambda device: torch.linalg.eigh(real(device, 4, 4) @ torch.eye(4, device=device))[0],
    "qr": lambda device: torch.linalg.qr(real(device, 4, 3))[0],
    "chol": lambda device: torch.linalg.cholesky(
        torch.eye(4, device=device) + 0 * real(device, 4, 4)
    ),
    "inv": lambda device: torch.linalg.inv(torch.eye(4, device=device) + 0 * real(device, 4, 4)),
    "pinv": lambda device: torch.linalg.pinv(real(device, 4, 3)),
    "slogdet": lambda device: torch.linalg.slogdet(
        torch.eye(4, device=device) + 0 * real(device, 4, 4)
    )[1],
    "lstsq": lambda device: least_squares(device, (2, 4, 3), (2, 4, 2)).solution,
    "lstsq_left": lambda device: least_squares(device, (4, 3), (4, 2)).residuals,
    "lstsq_wide": lambda device: least_squares(device, (3, 4), (3, 2)).residuals,
    "lstsq_vector": lambda device: least_squares(device, (4, 3), (4,)).solution,
    "geqrf": lambda device: torch.geqrf(torch.randn(2, 4, 3, device=device))[0],
    "reflectors": lambda device: torch.linalg.householder_product(
        *torch.geqrf(torch.randn(4, 3, device=device))
    ),
    "fakeq": lambda device: torch.fake_quantize_per_tensor_affine(
        real(device, 4, 3), 0.1, 0, -128, 127
    ),
    "fakeq_tensor": lambda device: torch.fake_quantize_per_tensor_affine(
        real(device, 4, 3), ones(device, 1), torch.zeros(1, device=device).int(), 0, 255
    ),
    "fakeq_channel": lambda device: torch.fake_quantize_per_channel_affine(
        real(device, 4, 3), ones(device, 3), torch.zeros(3, device=device).int(), 1, -128, 127
    ),
    "fakeq_module": lambda device: FakeQuantize().to(device)(real(device, 4, 3)),
    "fakeq_fused": lambda device: FusedMovingAvgObsFakeQuantize().to(device)(real(device, 4, 3)),
    "fakeq_learnt": lambda device: torch._fake_quantize_learnable_per_tensor_affine(  # type: ignore[attr-defined]
        real(device, 4, 3), real(device, 1), real(device, 1), 0, 255, 1.0
    ),
    "mexp": lambda device: torch.linalg.matrix_exp(real(device, 4, 4)),
    "mpow": lambda device: torch.linalg.matrix_power(real(device, 4, 4), 3),
    "trisolve": lambda device: torch.linalg.solve_triangular(
        torch.eye(4, device=device), real(device, 4, 2), upper=True
    ),
    "lu": lambda device: torch.linalg.lu(real(device, 4, 4))[1],
    "cholsolve": lambda device: torch.cholesky_solve(
        real(device, 4, 2), torch.eye(4, device=device)
    ),
    "eig": lambda device: torch.linalg.eigvals(torch.randn(4, 4, device=device)).abs(),
    "sort": lambda device: real(device, 4, 4).sort()[0],
    "kth": lambda device: real(device, 4, 4).kthvalue(2)[0],
    "median": lambda device: real(device, 4, 4).median(),
    "quant": lambda device: real(device, 8).quantile(0.5),
    "mode": lambda device: real(device, 4, 4).mode()[0],
    "cummax": lambda device: real(device, 4).cummax(0)[0],
    "logcum": lambda device: real(device, 4).logcumsumexp(0),
    "msort": lambda device: real(device, 4).msort(),
    "idxadd": lambda device: torch.zeros(4, 4, device=device).index_add(
        0, whole(device, 4, 2), real(device, 2, 4)
    ),
    "idxcopy": lambda device: torch.zeros(4, 4, device=device).index_copy(
        0, torch.tensor([0, 1], device=device), real(device, 2, 4)
    ),
    "scatred": lambda device: torch.zeros(4, device=device).scatter_reduce(
        0, whole(device, 4, 6), real(device, 6), "amax"
    ),
    "mscat": lambda device: torch.zeros(4, device=device).masked_scatter(
        torch.ones(4, dtype=torch.bool, device=device), real(device, 4)
    ),
    "put": lambda device: torch.zeros(4, device=device).put(whole(device, 4, 2), real(device, 2)),
    "take": lambda device: real(device, 4, 4).take(whole(device, 16, 3)),
    "takealong": lambda device: real(device, 4, 4).take_along_dim(whole(device, 4, 4, 4), 1),
    "cdist": lambda device: torch.cdist(real(device, 4, 3), real(device, 5, 3)),
    "pdist": lambda device: F.pdist(real(device, 4, 3)),
    "cosim": lambda device: F.cosine_similarity(real(device, 2, 4), real(device, 2, 4)),
    "normalize": lambda device: F.normalize(real(device, 2, 4)),
    "renorm": lambda device: real(device, 2, 4).renorm(2, 0, 1.0),
    "distcat": lambda device: torch.distributions.Categorical(logits=real(device, 2, 4)).log_prob(
        whole(device, 4, 2)
    ),
    "distsample": lambda device: torch.distributions.Categorical(
        logits=real(device, 2, 4)
    ).sample(),
    "beta": lambda device: torch.distributions.Beta(
        real(device, 4).exp(), real(device, 4).exp()
    ).rsample(),
    "gamma": lambda device: torch.distributions.Gamma(
        real(device, 4).exp(), real(device, 4).exp()
    ).rsample(),
    "dirich": lambda device: torch.distributions.Dirichlet(real(device, 4).exp()).rsample(),
    "mvn": lambda device: torch.distributions.MultivariateNormal(
        real(device, 3), torch.eye(3, device=device)
    ).rsample(),
    "pois": lambda device: torch.poisson(torch.ones(4, device=device)),
    "bern": lambda device: torch.bernoulli(torch.full((4,), 0.5, device=device)),
    "expo": lambda device: torch.empty(4, device=device).exponential_(),
    "geom": lambda device: torch.empty(4, device=device).geometric_(0.5),
    "cauchy": lambda device: torch.empty(4, device=device).cauchy_(),
    "lognorm": lambda device: torch.empty(4, device=device).log_normal_(),
    "rand_perm": lambda device: torch.randperm(10, device=device),
    "normal": lambda device: torch.normal(real(device, 4), torch.ones(4, device=device)),
    "normal2": lambda device: torch.normal(0.0, 1.0, (3,), device=device),
    "binom": lambda device: torch.binomial(
        torch.full((4,), 5.0, device=device), torch.full((4,), 0.5, device=device)
    ),
    "int8mm": lambda device: torch._int_mm(
        torch.ones(32, 32, dtype=torch.int8, device=device),
        torch.ones(32, 32, dtype=torch.int8, device=device),
    ),
    "logaddexp": lambda device: torch.logaddexp(real(device, 4), real(device, 4)),
    "xlogy": lambda device: torch.xlogy(real(device, 4), real(device, 4).exp()),
    "erf": lambda device: torch.erf(real(device, 4)),
    "lgam": lambda device: torch.lgamma(real(device, 4).exp()),
    "digam": lambda device: torch.digamma(real(device, 4).exp()),
    "i0": lambda device: torch.special.i0(real(device, 4)),
    "sinc": lambda device: torch.sinc(real(device, 4)),
    "polyg": lambda device: torch.polygamma(1, real(device, 4).exp()),
    "heavi": lambda device: torch.heaviside(real(device, 4).detach(), ones(device, 4)),
    "frac": lambda device: real(device, 4).frac(),
    "fmod": lambda device: torch.fmod(real(device, 4), 2),
    "hypot": lambda device: torch.hypot(real(device, 4), real(device, 4)),
    "addmv": lambda device: torch.addmv(real(device, 4), real(device, 4, 3), real(device, 3)),
    "addr": lambda device: torch.addr(real(device, 4, 3), real(device, 4), real(device, 3)),
    "addbmm": lambda device: torch.addbmm(
        real(device, 4, 5), real(device, 2, 4, 3), real(device, 2, 3, 5)
    ),
    "tdot": lambda device: torch.tensordot(real(device, 2, 3, 4), real(device, 3, 4, 5), 2),
    "inner": lambda device: torch.inner(real(device, 2, 3), real(device, 4, 3)),
    "vdot": lambda device: torch.vdot(real(device, 3), real(device, 3)),
    "rot90": lambda device: real(device, 2, 3).rot90(),
    "diff": lambda device: real(device, 5).diff(),
    "grad_": lambda device: torch.gradient(real(device, 5))[0],
    "unfold": lambda device: real(device, 10).unfold(0, 3, 2),
    "stdmean": lambda device: torch.std_mean(real(device, 4, 4))[0],
    "count": lambda device: torch.count_nonzero(real(device, 4)),
    "cummin": lambda device: real(device, 4).cummin(0)[0],
    "aminmax": lambda device: real(device, 4).aminmax()[0],
    "nansum": lambda device: real(device, 4).nansum(),
    "nanmean": lambda device: real(device, 4).nanmean(),
    "diagemb": lambda device: torch.diag_embed(real(device, 2, 3)),
    "diag": lambda device: real(device, 3).diag(),
    "trace": lambda device: real(device, 3, 3).trace(),
    "repeat": lambda device: real(device, 2).repeat(3, 2),
    "tile": lambda device: real(device, 2).tile(3),
    "bcast": lambda device: torch.broadcast_to(real(device, 1, 3), (4, 3)),
    "bucket": lambda device: torch.bucketize(real(device, 4), torch.arange(3.0, device=device)),
    "searchs": lambda device: torch.searchsorted(torch.arange(3.0, device=device), real(device, 4)),
    "multin": lambda device: torch.multinomial(torch.ones(2, 5, device=device), 3),
    "corr": lambda device: torch.corrcoef(real(device, 3, 5)),
    "unflatten": lambda device: real(device, 6).unflatten(0, (2, 3)),
    "complexabs": lambda device: torch.complex(real(device, 4), real(device, 4)).abs(),
    "angle": lambda device: torch.complex(real(device, 4), real(device, 4)).angle(),
    "asc": lambda device: torch.view_as_complex(real(device, 4, 2)).real,
    "polar": lambda device: torch.polar(real(device, 4).exp(), real(device, 4)).imag,
}


def described(call, device: str) -> tuple[object, ...]:
    """Shape, strides and dtype of a result, whose backward pass runs too."""
    torch.manual_seed(0)
    output: Tensor = call(device)
    if output.requires_grad:
        output.sum().backward()
    assert output.device.type == device
    return tuple(output.shape), output.stride(), output.dtype


@pytest.fixture(scope="module")
def on_device() -> dict[str, object]:
    """What every call gives on the simulated GPU, or the exception it raises."""
    results: dict[str, object] = {}
    with torchtally.virtual_gpu("H100-SXM"):
        for name, call in CALLS.items():
            try:
                results[name] = described(call, "cuda")
            except Exception as error:  # shown where it is compared
                results[name] = error
    return results


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_host_gives(name: str, on_device: dict[str, object]):
    try:
        expected = described(CALLS[name], "cpu")
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        pytest.skip(f"not in torch {torch.__version__}: {error}")
    assert on_device[name] == expected


def test_lists_of_lists_of_tensors_are_recorded_and_read_back(tmp_path: Path):
    """An operator of a library's own with `Tensor[][]` and a list of numbers."""
    library = torch.library.Library("tally_lists", "DEF")
    library.define("join(Tensor[][] groups, int[] sizes) -> Tensor[]")

    def join(groups: list[list[Tensor]], sizes: list[int]) -> list[Tensor]:
        return [torch.cat(group) for group in groups]

    library.impl("join", join, "CompositeExplicitAutograd")  # no key comes from such lists
    operator = torch.ops.tally_lists.join.default

    def script() -> None:
        a, b = (torch.ones(n, device="cuda") for n in (2, 3))
        joined = operator([[a, b], [b]], [5, 3])
        assert [tensor.shape for tensor in joined] == [(5,), (3,)]
        assert all(tensor.is_cuda for tensor in joined)

    trace = traced(script)
    (op,) = ops(trace, "tally_lists.join")
    assert [spec.shape for spec in op.call.tensors("groups")] == [(2,), (3,), (3,)]
    assert op.call.literals == (("sizes", (5, 3)),)
    assert [number >= 0 for number in op.inputs + op.outputs] == [True] * 5
    trace.save(tmp_path / "run.tally")
    assert torchtally.Trace.load(tmp_path / "run.tally") == trace


def test_learnable_fake_quantisation_costs_by_hand():
    """Forward 6 an element; backward 6 + 1 for dX + 2 for the scale + 2 for the zero point."""

    def script() -> None:
        x, scale, zero = (torch.ones(n, device="cuda", requires_grad=True) for n in (4, 1, 1))
        quantise = torch._fake_quantize_learnable_per_tensor_affine  # type: ignore[attr-defined]
        quantise(x, scale, zero, 0, 255, 1.0).sum().backward()

    ledger = accounted(script)
    name = "aten._fake_quantize_learnable_per_tensor_affine"
    flops = {e.call.name: e.cost.flops for e in ledger.entries if e.call.name.startswith(name)}
    assert flops == {name: 6 * 4, f"{name}_backward": 11 * 4}


def dtypes_by_scalars(device: str) -> list[torch.dtype]:
    """Calls that are equal to Python but for the kind of a number: 1 == 1.0 == True."""
    whole, truth = torch.arange(3, device=device), torch.arange(3, device=device) > 0
    return [
        result.dtype
        for one in (1, 1.0, True)
        for result in (
            whole * one,
            truth * one,
            whole**one,
            torch.clamp(whole, one),
            torch.full((2,), one, device=device),
            torch.where(truth, one, one),
        )
    ]


def dtypes_by_default(device: str) -> list[torch.dtype]:
    """The same calls under several default dtypes, which are no argument."""
    whole = torch.arange(3, device=device)
    dtypes = []
    before = torch.get_default_dtype()
    try:
        for default in (torch.float32, torch.bfloat16, torch.float64):
            torch.set_default_dtype(default)
            results = (torch.ones(2, device=device), whole / 2, whole.sqrt(), whole.sum() / 3)
            dtypes += [result.dtype for result in results]
    finally:
        torch.set_default_dtype(before)
    return dtypes


def forms_of_lists(device: str) -> list[tuple[Any, ...]]:
    """Operators on lists, of tensors whose results have other layouts or dtypes, too."""
    floats = [
        torch.zeros(3, 4, device=device),
        torch.zeros(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last),
        torch.zeros(4, 6, device=device, dtype=torch.float64).t(),
        torch.zeros(2, 6, device=device)[:, ::2],
        torch.zeros((), device=device),
    ]
    whole = [torch.zeros(3, dtype=torch.int64, device=device)]
    doubles = [tensor.double() for tensor in floats]
    lists = (
        *(function(floats[:2]) for function in (torch._foreach_sqrt, torch._foreach_neg)),
        *(torch._foreach_sqrt(each) for each in (floats, whole)),
        *(torch._foreach_add(floats, each, alpha=2.0) for each in (floats, doubles)),
        *(torch._foreach_mul(floats[:1], each) for each in (2, 2.0, 2j)),
        *(torch._foreach_div(whole, each) for each in (2, 2.0, whole)),
    )
    return [(x.shape, x.stride(), x.dtype) for each in lists for x in each]


@pytest.mark.parametrize("forms", [dtypes_by_scalars, dtypes_by_default, forms_of_lists])
def test_results_have_the_form_that_they_have_on_the_host(forms: Any):
    expected = forms("cpu")
    for _ in range(2):  # shapes of results are kept for the sessions that follow
        with virtual_gpu("H100-SXM"):
            assert forms("cuda") == forms("cuda") == expected


def test_another_chip_starts_without_the_results_of_the_last():
    with virtual_gpu("T4"):
        pass
    for gpu in ("H100-SXM", "A100-80GB-SXM", "H100-SXM"):
        with virtual_gpu(gpu) as device:
            assert not device.mode.operators
            torch.ones(2, device="cuda")
            assert device.mode.operators
    with virtual_gpu("H100-SXM") as device:
        assert {operator.name for operator in device.mode.operators.values()} == {"aten.ones"}


def test_sessions_read_a_module_for_each_state_of_it_not_for_each_session():
    """A session adds names to `torch._C` and takes them away."""
    looks: list[str] = []

    class Counted(aliases.ImportedFunctions):
        def _read_module(self, name: str, module: Any) -> None:
            looks.append(name)
            super()._read_module(name, module)

    target = roofline("H100-SXM")
    with patch.object(aliases, "_imported", Counted()):
        for _ in range(6):
            with tracing("block", target):
                torch.ones(2, device="cuda")
    assert 1 <= looks.count("torch._C") <= 3
