"""What a script reads of its losses: numbers that fall, the same for equal tensors."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchtally
from tests.traces import traced
from torchtally.torch_private import TorchDispatchMode
from torchtally.trace import Use

Loss = Callable[[Tensor, Tensor], Tensor]
LABELS = [row % 10 for row in range(32)]

LOSSES: dict[str, Loss] = {
    "squares": lambda out, x: (out - x).pow(2).mean(),
    "cross entropy": lambda out, x: F.cross_entropy(out, torch.tensor(LABELS, device=out.device)),
    "log-likelihood by hand": lambda out, x: -out.log_softmax(1)[:, 0].mean(),
    "binary": lambda out, x: F.binary_cross_entropy_with_logits(out, x.sigmoid()),
    "preference": lambda out, x: -F.logsigmoid(out[:, 0]).mean(),
    "critic": lambda out, x: out[:16].mean() - out[16:].mean(),
    "generator": lambda out, x: -out.mean(),
    "divergence": lambda out, x: -0.5 * torch.sum(1 + out - out.pow(2) - out.exp()),
    "overlap": lambda out, x: (
        1 - 2 * (out.sigmoid() * x.sigmoid()).sum() / (out.sigmoid().sum() + x.sigmoid().sum())
    ),
    "angle": lambda out, x: 1 - F.cosine_similarity(out, x).mean(),
    "hinge": lambda out, x: F.relu(1 - out).mean(),
    "with a penalty": lambda out, x: F.l1_loss(out, x) + 0.01 * out.norm(),
}


class Training:
    """A linear layer too large for its values to be kept."""

    def __init__(self, loss: Loss) -> None:
        self.layer, self.x = torch.nn.Linear(512, 512).cuda(), torch.randn(32, 512, device="cuda")
        self.optimizer, self.loss = torch.optim.SGD(self.layer.parameters(), lr=0.1), loss

    def step(self) -> Tensor:
        loss = self.loss(self.layer(self.x), self.x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def validate(self) -> Tensor:
        return self.loss(self.layer(self.x), self.x)


@pytest.fixture
def gpu():
    with torchtally.virtual_gpu("H100-SXM"):
        yield


@pytest.mark.parametrize("name", LOSSES)
def test_losses_fall_in_training_and_in_validation(gpu: None, name: str):
    training = Training(LOSSES[name])
    steps, validations = zip(
        *((training.step(), training.validate()) for _ in range(4)), strict=True
    )
    for losses in (steps, validations):
        read = [loss.item() for loss in losses]
        assert all(later < earlier for earlier, later in pairwise(read)), read


def test_the_numbers_are_those_of_the_documented_sequence(gpu: None):
    training = Training(LOSSES["squares"])
    read = [training.step().item() for _ in range(3)]
    assert read == pytest.approx([1, 2**-0.1, 3**-0.1])


def test_equal_tensors_read_the_same(gpu: None):
    training = Training(LOSSES["squares"])
    training.step()
    loss = training.step()
    once = loss.item()
    assert loss.item() == float(loss.detach()) == loss.clone().item() == once
    assert (4 * loss).item() == 4 * (loss / 1).tolist() == pytest.approx(4 * once)
    assert torch.stack([loss, loss]).mean().item() == pytest.approx(once)
    assert loss.detach().cpu().numpy() == pytest.approx(once)
    assert (loss < 1).item()
    assert not (loss.detach() < 0.5).item()
    assert not math.isnan(loss.item())


def test_two_runs_read_the_same():
    def read() -> list[float]:
        with torchtally.virtual_gpu("H100-SXM"):
            training = Training(LOSSES["cross entropy"])
            return [training.step().item() for _ in range(3)]

    first = read()
    assert read() == first


def test_a_loss_stays_within_what_is_known_of_it(gpu: None):
    training = Training(lambda out, x: 3 + out.sigmoid().mean())
    assert all(3 <= training.step().item() <= 4 for _ in range(4))
    likelihood = Training(lambda out, x: out.log_softmax(1).mean())
    read = [likelihood.step().item() for _ in range(4)]
    assert read == sorted(read)
    assert read[-1] < 0


def test_what_is_no_loss_is_no_falling_number(gpu: None):
    training = Training(LOSSES["squares"])
    for _ in range(2):
        training.step()
        gradients = [each.grad for each in training.layer.parameters() if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        share = (training.layer(training.x) > 0).float().mean()
        assert (norm.item(), share.item()) == (1.0, 0.5)
        assert torch.randn(4096, device="cuda").mean().item() == 1.0


def test_lbfgs_searches_as_long_as_it_may():
    """`abs(loss - prev_loss) < tolerance_change` ended its search after one closure."""
    calls: list[int] = []

    def script() -> None:
        training = Training(LOSSES["squares"])
        optimizer = torch.optim.LBFGS(training.layer.parameters(), history_size=5)

        def closure() -> Tensor:
            calls.append(1)
            optimizer.zero_grad()
            loss = training.validate.__wrapped__(training)  # type: ignore[attr-defined]
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    traced(script)
    assert len(calls) == 40


def minimise(layer: torch.nn.Linear, x: Tensor) -> list[Tensor]:
    """Two steps of LBFGS; the directions that it keeps."""
    optimizer = torch.optim.LBFGS(layer.parameters(), history_size=7)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x).tanh() - x).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    (state,) = optimizer.state.values()
    return state["old_dirs"]


class Dots(TorchDispatchMode):
    """Counts scalar products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.dot.default
        return func(*args, **(kwargs or {}))


def test_lbfgs_keeps_its_history_and_does_the_products_of_a_real_run():
    torch.manual_seed(0)
    with Dots() as real:
        kept = minimise(torch.nn.Linear(16, 16), torch.randn(64, 16))
    sizes: list[int] = []

    def script() -> None:
        layer, x = torch.nn.Linear(512, 512).cuda(), torch.randn(32, 512, device="cuda")
        sizes.append(len(minimise(layer, x)))

    trace = traced(script)
    dots = [op for op in trace.ops if trace.calls[op.call].name.startswith("aten.dot")]
    assert sizes == [len(kept)] == [7]
    assert len(dots) == real.count


def test_an_unknown_number_is_more_than_nothing(gpu: None):
    """Compared with a guard against zero it is as the number that is read for it: 1."""
    norm = torch.randn(4096, device="cuda").norm()
    assert (norm > 1e-12).item()
    assert (norm >= 1e-12).item()
    assert not (norm < 1e-12).item()
    assert not (norm > 1e-3).item()  # a tolerance
    assert not (norm > 0).item()
    assert not (norm * 0 > 1e-12).item()
    assert not (norm.clamp(max=1e-13) > 1e-12).item()


def test_no_loop_goes_on_for_being_above_a_guard():
    def script() -> None:
        rest = torch.randn(4096, device="cuda").norm()
        while rest > 1e-9:
            raise AssertionError
        assert not rest > 1e-9  # what a check waits for comes first

    uses = [read.use for read in traced(script).placeholders]
    assert Use.EXIT in uses


def test_early_stopping_and_plateaus_see_a_training_that_goes_well(gpu: None):
    training = Training(LOSSES["cross entropy"])
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(training.optimizer, patience=1)
    best, waited = math.inf, 0
    for _ in range(30):
        training.step()
        loss = training.validate()
        scheduler.step(loss)
        waited = 0 if loss < best else waited + 1
        best = min(best, loss.item())
        assert waited == 0
    assert training.optimizer.param_groups[0]["lr"] == 0.1


def test_the_lines_that_read_losses_are_listed():
    def script() -> None:
        training = Training(LOSSES["squares"])
        for _ in range(3):
            loss = training.step()
            if loss.item() > 10:
                raise AssertionError

    (read,) = traced(script).placeholders
    assert (read.use, read.given, read.count) == (Use.BRANCH, "assumed: losses fall", 3)


def test_a_loop_that_waits_for_a_loss_without_training_is_stopped():
    def script() -> None:
        training = Training(LOSSES["squares"])
        while training.validate() > 1e-3:
            pass

    with pytest.raises(torchtally.TallyError, match="100 times without a training step"):
        traced(script, placeholder_limit=100)


def test_a_replayed_graph_has_another_loss(gpu: None):
    training = Training(LOSSES["squares"])
    training.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.loss(training.layer(training.x), training.x)
    read = []
    for _ in range(3):
        graph.replay()
        read.append(loss.item())
    assert read == sorted(set(read), reverse=True)
    assert len(read) == 3
