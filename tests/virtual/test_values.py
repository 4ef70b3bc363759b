"""Which values are real, which are placeholders, and that every placeholder is declared."""

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally
from tests.traces import traced
from torchtally.errors import UnsupportedError, UsageError
from torchtally.trace import Placeholder
from torchtally.virtual.facts.facts import stored_number
from torchtally.virtual.storage import virtual_of

pytestmark = pytest.mark.one_case_in(3)

BIG = 4096
"""Elements of a float tensor too big to have values (16 KiB)."""


def unknown(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (BIG,), device="cuda").to(dtype)


def placeholders(function: Callable[[], object], **options: object) -> tuple[Placeholder, ...]:
    return traced(function, **options).placeholders


# Small tensors have values.


def test_the_missions_gradient():
    """y = 0.5 (x.w - 5)^2 with x = [1, 2, 3] and w = 1: the gradient is (6 - 5) x."""
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
        w = torch.tensor([1.0, 1.0, 1.0], device="cuda", requires_grad=True)
        prediction = x @ w
        loss = 0.5 * (prediction - 5).pow(2)
        loss.backward()
        assert w.grad is not None
        assert w.grad.tolist() == [1, 2, 3]
        assert loss.item() == 0.5
        assert x.grad is None
        assert loss.is_leaf is False


def test_a_tensor_that_gets_another_storage_writes_to_none():
    with torchtally.virtual_gpu("H100-SXM"):
        x, ids = torch.arange(6, device="cuda"), torch.arange(10, 14, device="cuda")
        rows = x.view(2, 3)
        x.set_(ids.untyped_storage(), 1, (2,), (1,))
        assert (x.tolist(), ids.tolist()) == ([11, 12], [10, 11, 12, 13])
        x.set_(rows)
        assert (x.tolist(), ids.tolist()) == ([[0, 1, 2], [3, 4, 5]], [10, 11, 12, 13])


def test_values_are_computed_without_waking_threads(monkeypatch: pytest.MonkeyPatch):
    native, threads = torch.set_num_threads, list[int]()

    def set_num_threads(count: int) -> None:
        threads.append(count)
        native(count)

    before = torch.get_num_threads()
    with torchtally.virtual_gpu("H100-SXM"):
        ids = torch.arange(100_000, device="cuda")
        monkeypatch.setattr(torch, "set_num_threads", set_num_threads)
        mask = ids > 10  # computed, and copied to where it is kept
    assert threads == [1, before, 1, before]
    assert virtual_of(mask) is not None
    assert torch.get_num_threads() == before


def test_a_number_is_stored_as_its_dtype_stores_it():
    assert [math.copysign(1, stored_number(zero, sign, torch.float16)) for zero, sign in
            ((0.0, 1.0), (-0.0, -1.0))] == [1, -1]  # fmt: skip
    assert [stored_number(2.5, 1.0, dtype) for dtype in (torch.int32, torch.bool)] == [2, True]
    assert stored_number(0.1, 1.0, torch.float64) == 0.1
    assert [type(stored_number(number, 1.0, torch.float32)) for number in (1, 1.0)] == [
        float,
        float,
    ]


def test_a_toy_model_trains_as_on_the_host():
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.arange(8.0).view(2, 4).to(device) / 8
        target = torch.tensor([[1.0], [0.0]]).to(device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train("cpu")
    with torchtally.virtual_gpu("H100-SXM"):
        assert train("cuda") == pytest.approx(expected, rel=1e-5)
    assert expected[2] < expected[0]


def test_token_ids_are_real_at_any_usual_size():
    with torchtally.virtual_gpu("H100-SXM"):
        ids = torch.arange(8 * 1024, device="cuda").view(8, 1024)
        shifted = ids[:, 1:]
        assert shifted[7, -1].item() == 8 * 1024 - 1
        assert ids.max().item() == 8 * 1024 - 1
        assert (ids % 2).sum().item() == 4 * 1024
        mask = ids < 100
        assert mask.sum().item() == 100
        assert torch.randint(5, (4, 4), device="cuda").max().item() < 5


SAME_AS_ON_THE_HOST: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (2 * x + 1) / (x + 3) - x**2,
    "power of a number": lambda x: torch.pow(2, x),
    "floor division": lambda x: x // 2,
    "remainder": lambda x: x % 2,
    "compare": lambda x: x > 1,
    "logic": lambda x: (x > 1) & ~(x == 3),
    "where with numbers": lambda x: torch.where(x > 1, x, 0.0),
    "clamp": lambda x: x.clamp(0.5, 2),
    "masked_fill": lambda x: x.masked_fill(x > 2, -1),
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([1, 0], device=x.device)),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "sort": lambda x: x.sort(descending=True),
    "argmax": lambda x: x.argmax(-1),
    "topk": lambda x: x.topk(2),
    "cumsum": lambda x: x.cumsum(0),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "chunk": lambda x: x.chunk(2),
    "roll": lambda x: x.roll(1, 0),
    "flip": lambda x: x.flip(0),
    "tril": lambda x: x.tril(),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "norm": lambda x: x.norm(),
    "std": lambda x: x.std(),
    "mean over a dim": lambda x: x.mean(0, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, dim=1),
    "gather": lambda x: x.gather(1, torch.tensor([[0], [1]], device=x.device)),
    "scatter": lambda x: x.scatter(1, torch.tensor([[0], [1]], device=x.device), 9.0),
    "index": lambda x: x[torch.tensor([1, 0], device=x.device)],
    "index by a list": lambda x: x[[1, 0]],
    "index by a bool list": lambda x: x[[True, False]],
    "index by numpy": lambda x: x[np.array([1, 0])],
    "index by a tuple of lists": lambda x: x[[0, 1], [1, 2]],
    "index by a slice and a list": lambda x: x[:, [0, 2]],
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0], device=x.device)),
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
    "embedding": lambda x: F.embedding(torch.tensor([1, 1, 0], device=x.device), x),
    "one_hot": lambda x: F.one_hot(torch.tensor([1, 0], device=x.device), 3),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "gelu": lambda x: F.gelu(x),
    "silu": lambda x: F.silu(x),
    "pad": lambda x: F.pad(x, (1, 1), value=7.0),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "conv1d": lambda x: F.conv1d(x[None], x.new_ones(2, 2, 2)),
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
    "bincount": lambda x: torch.bincount(x.long().flatten()),
    "histc": lambda x: torch.histc(x, 4),
    "searchsorted": lambda x: torch.searchsorted(x[0], x[1]),
    "searchsorted of a number": lambda x: torch.searchsorted(x[0], 1.5),
    "bucketize": lambda x: torch.bucketize(x, x[0]),
    "isin": lambda x: torch.isin(x, 3.0),
    "any and all": lambda x: ((x > 1).any(), (x > 1).all(-1)),
    "unique": lambda x: torch.unique(x, return_counts=True),
    "nonzero": lambda x: x.nonzero(),
    "nonzero as tuple": lambda x: x.nonzero(as_tuple=True),
    "where of one argument": lambda x: torch.where(x > 1),
    "masked_select": lambda x: x[x > 1],
    "argwhere": lambda x: torch.argwhere(x > 1),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([1, 2], device=x.device), 0),
    "repeat_interleave by a number": lambda x: x.repeat_interleave(2, 1),
    "cdist": lambda x: torch.cdist(x, x),
    "kron": lambda x: torch.kron(x, x),
    "svd": lambda x: torch.linalg.svdvals(x),
    "solve": lambda x: torch.linalg.solve(x[:, :2] + torch.eye(2, device=x.device), x[:, 0]),
    "det": lambda x: torch.linalg.det(x[:, :2]),
    "fft": lambda x: torch.fft.rfft(x),
    "complex": lambda x: torch.complex(x, x).conj() * 1j,
    "view_as_real": lambda x: torch.view_as_real(torch.polar(x, x)),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
    "block_diag": lambda x: torch.block_diag(x, x),
    "combinations": lambda x: torch.combinations(x[0]),
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0], x[1]),
    "trapezoid": lambda x: torch.trapezoid(x),
    "cov": lambda x: torch.cov(x),
    "vander": lambda x: torch.vander(x[0]),
    "affine_grid": lambda x: F.affine_grid(x[None], [1, 1, 2, 2], align_corners=False),
    "causal mask": lambda x: torch.ones(3, 3, device=x.device, dtype=torch.bool).tril(),
    "triangle of an arange": lambda x: torch.arange(3, device=x.device)[:, None] >= 1,
    "casts": lambda x: (x.long(), x.half(), x.bool(), x.double()),
    "bit tricks": lambda x: (x.long() << 2) | 1,
    "isnan": lambda x: torch.isnan(x / 0),
    "isfinite": lambda x: torch.isfinite(x / 0),
    "nan_to_num": lambda x: torch.nan_to_num(x / 0),
    "lerp": lambda x: torch.lerp(x, x + 1, 0.5),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), 1),
    "tensor_split": lambda x: x.tensor_split(3, dim=1),
    "unbind": lambda x: x.unbind(1),
    "squeeze": lambda x: x[None].squeeze(),
    "movedim": lambda x: x[None].movedim(0, -1),
    "sdpa": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], is_causal=True
    ),
}


def numbers(values: object) -> object:
    """Nested lists of a result's numbers."""
    if isinstance(values, Tensor):
        assert values.dim() == 0 or values.numel() >= 0
        return values.resolve_conj().tolist()
    assert isinstance(values, (tuple, list))
    return [numbers(item) for item in values]


def flat(values: object) -> list[object]:
    return [n for item in values for n in flat(item)] if isinstance(values, list) else [values]


@pytest.mark.parametrize("name", SAME_AS_ON_THE_HOST)
def test_small_tensors_give_the_hosts_numbers(name: str):
    """The CPU is the oracle: known values stay known, and are the same."""
    call = SAME_AS_ON_THE_HOST[name]
    data = [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    expected = numbers(call(torch.tensor(data)))

    def on_device() -> None:
        actual = numbers(call(torch.tensor(data, device="cuda")))
        assert np.shape(flat(actual)) == np.shape(flat(expected))
        assert flat(actual) == pytest.approx(flat(expected), rel=1e-5, abs=1e-6, nan_ok=True)

    trace = traced(on_device)
    assert trace.placeholders == ()


IN_PLACE: dict[str, Callable[[Tensor], object]] = {
    "setitem of a number": lambda x: x.__setitem__((0, 1), 5.0),
    "setitem of a row": lambda x: x.__setitem__(0, 5.0),
    "setitem of a slice": lambda x: x.__setitem__((slice(None), slice(1, None)), -1),
    "setitem of a list": lambda x: x.__setitem__(0, torch.tensor([7.0, 8, 9], device=x.device)),
    "setitem by a mask": lambda x: x.__setitem__(x > 1, 0.0),
    "setitem by a list": lambda x: x.__setitem__([0, 1], 4.0),
    "setitem by indices": lambda x: x.__setitem__(
        (torch.tensor([0, 1], device=x.device), torch.tensor([1, 2], device=x.device)), 6.0
    ),
    "setitem of the whole": lambda x: x.__setitem__(..., 3.0),
    "setitem from the host": lambda x: x.__setitem__(0, torch.tensor([1.0, 1.0, 1.0])),
    "fill_": lambda x: x.fill_(3),
    "zero_ of a view": lambda x: x[0].zero_(),
    "add_ to a view": lambda x: x.view(-1)[2:4].add_(10),
    "mul_ through a transpose": lambda x: x.t()[0].mul_(5),
    "copy_": lambda x: x.copy_(torch.ones(2, 3)),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, 9),
    "clamp_": lambda x: x.clamp_(max=1.5),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0], device=x.device), x[1:] + 0),
    "scatter_": lambda x: x.scatter_(1, torch.tensor([[0], [2]], device=x.device), 8.0),
    "out=": lambda x: torch.add(x, 1, out=x),
    "augmented": lambda x: x.__iadd__(1),
    "index_put_": lambda x: x.index_put_(
        (torch.tensor([1], device=x.device),), torch.tensor(2.0, device=x.device), accumulate=True
    ),
    "swap of rows": lambda x: x.__setitem__([0, 1], x[[1, 0]]),
    "fill_diagonal_": lambda x: x.fill_diagonal_(1),
    "triu_": lambda x: x.triu_(),
    "foreach": lambda x: torch._foreach_mul_([x], 2.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_operators_write_the_hosts_numbers(name: str):
    host = torch.tensor([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    data = host.tolist()
    IN_PLACE[name](host)

    def on_device() -> None:
        x = torch.tensor(data, device="cuda")
        IN_PLACE[name](x)
        assert x.tolist() == host.tolist()

    assert traced(on_device).placeholders == ()


# What nobody knows is a placeholder, and said.


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_reading_an_unknown_value_is_declared_with_its_line():
    lines: dict[str, int] = {}

    def script() -> None:
        x = unknown()
        lines["item"] = here() + 1
        assert x.sum().item() == 1.0
        lines["bool"] = here() + 1
        assert not (x.sum() > 0)
        lines["tolist"] = here() + 1
        assert x[:3].tolist() == [1.0, 1.0, 1.0]
        lines["numpy"] = here() + 1
        assert x[:3].cpu().numpy().tolist() == [1.0, 1.0, 1.0]
        lines["equal"] = here() + 1
        assert not torch.equal(x, x.clone())
        lines["close"] = here() + 1
        assert torch.allclose(x, x.clone())
        lines["int"] = here() + 1
        assert int(x.sum().long()) == 0
        lines["format"] = here() + 1
        assert f"{x.mean():.1f}" == "1.0"

    by_line = {p.frame.line: p for p in placeholders(script) if p.frame}
    assert sorted(by_line) == sorted(lines.values())
    assert {p.op for p in by_line.values()} == {
        "aten._local_scalar_dense", "aten.tolist", "aten.numpy", "aten.equal",
        "aten.allclose",
    }  # fmt: skip
    assert all(p.count == 1 for p in by_line.values())
    assert by_line[lines["item"]].frame.file == __file__
    assert by_line[lines["item"]].given == "1.0"
    assert by_line[lines["bool"]].given == "False"
    assert by_line[lines["close"]].given == "True"


def test_a_placeholder_read_often_is_counted():
    def script() -> None:
        x = unknown()
        for _ in range(5):
            x.sum().item()

    (placeholder,) = placeholders(script)
    assert placeholder.count == 5


def test_known_values_need_no_placeholder():
    def script() -> None:
        x = torch.ones(4, device="cuda")
        assert x.sum().item() == 4
        assert x.tolist() == [1] * 4
        assert torch.equal(x, x.clone())
        assert x.mean() == 1

    assert placeholders(script) == ()


def test_values_are_lost_once_something_unknown_is_written():
    def script() -> None:
        x = torch.ones(4, device="cuda")
        x[1:3].copy_(unknown()[:2])
        x.sum().item()
        y = torch.zeros(2, device="cuda")
        y.add_(unknown().sum())
        y.tolist()
        y.zero_()  # as a whole: known again
        assert y.tolist() == [0, 0]

    assert [p.op for p in placeholders(script)] == ["aten._local_scalar_dense", "aten.tolist"]


@pytest.mark.parametrize("channels", [64, 4096])
def test_running_statistics_are_lost_in_training_and_kept_in_evaluation(channels: int):
    def script() -> None:
        norm = nn.BatchNorm2d(channels, device="cuda").eval()
        images = unknown(2, channels, 8, 8)
        norm(images)
        assert norm.running_mean is not None
        assert norm.running_mean.abs().max().item() == 0
        norm.train()(images)
        assert norm.running_mean.abs().max().item() == 1

    (placeholder,) = placeholders(script)
    assert placeholder.given == "1.0"


def test_unknown_floats_pass_checks_for_nan_and_infinity():
    def script() -> None:
        x = unknown()
        assert not torch.isnan(x).any()
        assert not torch.isinf(x).any()
        assert torch.isfinite(x).all()
        assert torch.isfinite(x.sum())
        assert not torch.isnan(x.sum())
        assert not (x != x).any()
        loss = x.mean()
        if not torch.isfinite(loss):
            raise AssertionError

    assert placeholders(script) == ()


def test_math_isnan_of_a_placeholder_is_false():
    def script() -> None:
        assert not np.isnan(unknown().sum().item())

    assert len(placeholders(script)) == 1


def test_a_host_copy_of_an_unknown_value_keeps_to_the_policy():
    """A pinned buffer the script copies a loss into."""

    def script() -> None:
        buffer = torch.zeros(1)
        buffer.copy_(unknown().sum()[None])
        assert buffer.tolist() == [0]

    (placeholder,) = placeholders(script)
    assert "old contents" in placeholder.given


# Shapes made of values.


def test_known_masks_give_exact_shapes():
    def script() -> None:
        ids = torch.arange(1000, device="cuda")
        assert ids[ids < 10].shape == (10,)
        assert (ids % 2 == 0).nonzero().shape == (500, 1)
        assert torch.masked_select(ids, ids > 990).tolist() == list(range(991, 1000))
        assert torch.unique(ids % 7).tolist() == list(range(7))
        x = unknown(1000, 64)
        assert x[ids < 10].shape == (10, 64)
        assert torch.bincount(ids % 3).tolist() == [334, 333, 333]

    assert placeholders(script) == ()


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.0])
def test_unknown_masks_get_the_declared_fraction(fraction: float):
    rows = round(BIG * fraction)

    def script() -> None:
        x = unknown()
        assert x[x > 0].shape == (rows,)
        assert (x > 0).nonzero().shape == (rows, 1)
        assert torch.masked_select(x, x > 0).shape == (rows,)
        assert torch.where(x > 0)[0].shape == (rows,)

    given = placeholders(script, nonzero_fraction=fraction)
    assert {p.op for p in given} == {"aten.nonzero", "aten.masked_select"}
    assert all(f"{rows} of {BIG}" in p.given for p in given)


def test_unknown_values_are_all_different():
    def script() -> None:
        x = unknown()
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        assert values.shape == counts.shape == (BIG,)
        assert inverse.shape == x.shape
        assert torch.unique_consecutive(x).shape == (BIG,)

    assert all("different" in p.given for p in placeholders(script))


def test_an_unknown_mask_of_rows():
    def script() -> None:
        x = unknown(64, 64)
        assert x[x.sum(1) > 0].shape == (64, 64)
        x[x > 0] = 0.0

    assert {p.op for p in placeholders(script)} == {"aten.nonzero"}


def test_repeat_interleave_by_unknown_counts():
    def script() -> None:
        counts = unknown().long()
        assert torch.repeat_interleave(counts).shape == (BIG,)
        known = torch.tensor([1, 2, 3], device="cuda")
        assert torch.repeat_interleave(known).tolist() == [0, 1, 1, 2, 2, 2]
        assert unknown(3, 8).repeat_interleave(known, dim=0).shape == (6, 8)

    assert [p.op for p in placeholders(script)] == ["aten.repeat_interleave"]


def test_a_router_is_balanced():
    """64 tokens, 8 experts, 2 of them each: every expert gets 16 of the 128 choices."""

    def script() -> None:
        logits = unknown(64, 8)
        logits = logits @ unknown(8, 8)
        logits = logits + unknown(64, 64)[:, :8]
        chosen = logits.topk(2).indices
        assert chosen.shape == (64, 2)
        assert torch.bincount(chosen.flatten(), minlength=8).tolist() == [16] * 8
        assert all(a != b for a, b in chosen.tolist())
        for expert in range(8):
            tokens, _ = torch.where(chosen == expert)
            assert tokens.shape == (16,)

    given = placeholders(script)
    assert {p.given for p in given} == {"assumed: balanced routing"}
    assert {p.op for p in given} == {"aten.tolist", "aten.bincount", "aten.nonzero"}


def test_sampling_gives_valid_tokens():
    def script() -> None:
        probabilities = unknown(4, 32000).softmax(-1)
        token = torch.multinomial(probabilities, 1)
        assert token.shape == (4, 1)
        assert 0 <= int(token.max()) < 32000
        argmax = probabilities.argmax(-1)
        assert argmax.shape == (4,)

    assert {p.given for p in placeholders(script)} == {"assumed: balanced routing"}


def test_an_embedding_of_unknown_indices_is_no_problem():
    def script() -> None:
        table = nn.Embedding(100, 64, device="cuda")
        assert table(unknown(4, 32000).argmax(-1)).shape == (4, 64)

    assert placeholders(script) == ()


def test_a_fraction_out_of_range_is_refused():
    session = torchtally.virtual_gpu("H100-SXM", nonzero_fraction=1.5)
    with pytest.raises(UsageError, match="nonzero_fraction"), session:
        pass


def test_higher_order_operators_are_refused_in_words():
    """Their Python runs below every mode, where nothing could be counted."""

    def script() -> None:
        x = torch.ones(4, device="cuda")
        torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    with pytest.raises(UnsupportedError, match=r"^cond is a higher-order operator"):
        traced(script)


# The host's memory: tensors that are real, and those that are not.


def test_an_initialised_weight_of_2_mib_is_real():
    """What scripts print of their initialisation, 16384 x 32, is what they drew."""

    def script() -> None:
        weight = torch.empty(16384, 32)
        nn.init.normal_(weight, std=0.02)
        assert weight.std().item() == pytest.approx(0.02, rel=0.01)
        assert nn.Linear(32, 16384).weight.abs().max().item() == pytest.approx(32**-0.5, rel=0.01)

    assert placeholders(script) == ()


def is_real(tensor: Tensor) -> bool:
    return virtual_of(tensor) is None


MIB = 1024 * 1024


def test_tensors_between_1_and_4_mib_are_real_up_to_64_mib_at_a_time():
    with torchtally.virtual_gpu("H100-SXM"):
        held = [torch.zeros(MIB) for _ in range(16)]  # 4 MiB each
        assert all(map(is_real, held))
        assert not is_real(torch.zeros(MIB // 2))
        assert is_real(torch.zeros(MIB // 4))  # 1 MiB is always real
        assert not is_real(torch.zeros(MIB + 1))
        view = held.pop()[:10]
        assert not is_real(torch.zeros(MIB))  # a view holds it
        del view
        assert is_real(torch.zeros(MIB))
        assert is_real(torch.zeros(MIB, dtype=torch.int64))  # integers are, whatever their size


def test_a_virtual_tensor_of_the_host_has_facts():
    def script() -> None:
        weight = torch.ones(10_000, 10_000)
        assert weight.sum().item() == 1e8
        nn.init.uniform_(weight, -0.5, 0.5)
        assert (weight.abs() <= 0.5).all()
        weight.normal_(std=0.02).clamp_(-0.04, 0.04)
        assert weight.to("cuda").abs().max() <= 0.04

    assert placeholders(script) == ()


def test_gradients_of_host_leaves_are_real_where_the_leaves_are():
    """Both of 2 MiB: one was made within the budget, one beyond it."""

    def script() -> None:
        real = torch.zeros(MIB // 2, requires_grad=True)
        filler = [torch.zeros(MIB // 2) for _ in range(32)]
        virtual = torch.zeros(MIB // 2, requires_grad=True)
        assert is_real(real)
        assert not is_real(virtual)
        assert filler
        for leaf in (real, virtual):
            (leaf.to("cuda") * 2).sum().backward()
            assert leaf.grad is not None
            assert leaf.grad.device.type == "cpu"
            assert is_real(leaf.grad) is is_real(leaf)

    assert {placeholder.given for placeholder in placeholders(script)} <= {
        "a gradient of zeros on the host"
    }


def test_a_tensor_that_grows_keeps_what_it_held():
    """Of a storage that was emptied nothing is left."""

    def script() -> None:
        grown = torch.arange(5, dtype=torch.uint8, device="cuda").resize_(torch.tensor([7]))
        assert grown.tolist() == [0, 1, 2, 3, 4, 0, 0]
        emptied = torch.arange(1, 5, device="cuda")
        emptied.untyped_storage().resize_(0)
        emptied.untyped_storage().resize_(32)
        assert emptied.tolist() == [0, 0, 0, 0]

    assert traced(script).ending.kind == "exit"
