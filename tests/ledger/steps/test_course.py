"""Which steps of a run are alike, and what a period covers."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import torchtally
from tests.traces import traced
from torchtally.errors import UsageError
from torchtally.ledger import Ledger
from torchtally.ledger.steps import Course, course_of
from torchtally.trace import Phase

D = 16


def train(sizes: list[int], *, to_none: bool = True) -> Course:
    """A step for each batch size."""

    def script() -> None:
        model = nn.Linear(D, D).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for size in sizes:
            model(torch.ones(size, D, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    return course_of(traced(script))


def likes(course: Course) -> list[int]:
    return [step.like for step in course.steps]


def test_steps_of_equal_shapes_are_alike() -> None:
    course = train([4, 4, 4])
    assert likes(course) == [1, 1, 1]
    assert course.default_period().name == "steady-state step 3"


def test_steps_of_other_shapes_are_not() -> None:
    course = train([4, 8])
    assert likes(course) == [1, 2]
    assert course.default_period().name == "step 2 (unlike those before it)"
    one, two = course.steps
    assert "forward with other shapes" in course.difference(two, one)


def test_the_last_steady_step_is_reported() -> None:
    """The last batch of an epoch is smaller."""
    course = train([4, 4, 2])
    assert likes(course) == [1, 1, 3]
    assert course.default_period().name == "steady-state step 2"
    assert [step.number for step in course.alike(course.steps[1])] == [1, 2]


def test_lengths_that_alternate() -> None:
    assert likes(train([4, 8, 4, 8])) == [1, 2, 1, 2]


def test_gradients_that_are_kept_make_no_other_step() -> None:
    """From the second step on, gradients are set to zero and added to."""
    course = train([4, 4, 4], to_none=False)
    assert likes(course) == [1, 1, 1]
    assert course.default_period().name == "steady-state step 3"
    assert likes(train([4, 8, 8], to_none=False)) == [1, 2, 2]


def momentum(model: nn.Module) -> Callable[[], None]:
    """The first step makes the state that later ones multiply and add to."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step


def scaler(model: nn.Module) -> Callable[[], None]:
    """Its update follows the optimizer's step, so it is in the step after."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones((), device="cuda"))

    def step() -> None:
        scaler.step(optimizer)
        scaler.update()

    return step


def clipped(model: nn.Module) -> Callable[[], None]:
    """Weights that are clipped after the step, as a critic's."""
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.step()
        with torch.no_grad():
            for weight in model.parameters():
                weight.clamp_(-1, 1)

    return step


def followed(model: nn.Module) -> Callable[[], None]:
    """A target network that follows, written by `out=` (stable-baselines3's Polyak average)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = copy.deepcopy(model)
    target(torch.ones(4, D, device="cuda"))

    def step() -> None:
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(target.parameters(), model.parameters(), strict=True):
                mean.data.mul_(0.9)
                torch.add(mean.data, weight.data, alpha=0.1, out=mean.data)

    return step


def by_a_bucket(model: nn.Module) -> Callable[[], None]:
    """Adds gradients up in a flat buffer of its own, which it zeroes for the next step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bucket = torch.zeros(D * D + D, device="cuda")

    def step() -> None:
        weights = list(model.parameters())
        bucket.add_(torch.cat([weight.grad.flatten() for weight in weights]))
        parts = bucket.split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight).clone()
        optimizer.step()
        bucket.zero_()

    return step


def one_by_one(model: nn.Module) -> Callable[[], None]:
    """Divides by another bias correction in each step: a float, which no call keeps."""
    return torch.optim.AdamW(model.parameters(), foreach=False).step


def halved(model: nn.Module) -> Callable[[], None]:
    """From the second step on it halves the gradients' scale: no state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = iter(range(9))

    def step() -> None:
        if next(steps):
            for weight in model.parameters():
                assert weight.grad is not None
                weight.grad.div_(2)
        optimizer.step()

    return step


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (momentum, [1, 1, 1]),
        (scaler, [1, 1, 1]),
        (clipped, [1, 1, 1]),
        (one_by_one, [1, 1, 1]),
        (followed, [1, 1, 1]),
        (by_a_bucket, [1, 1, 1]),
        (halved, [1, 2, 2]),
    ],
)
def test_what_a_first_step_lacks_by_nature_makes_no_other_step(
    way: Callable[[nn.Module], Callable[[], None]], expected: list[int]
) -> None:
    def script() -> None:
        model = nn.Linear(D, D).cuda()
        step = way(model)
        for _ in range(3):
            model(torch.ones(4, D, device="cuda")).square().sum().backward()
            step()
            model.zero_grad()

    assert likes(course_of(traced(script))) == expected


@pytest.mark.parametrize("parallel", [nn.parallel.DistributedDataParallel, fully_shard])
def test_what_data_parallelism_does_at_first_makes_no_other_step(
    parallel: Callable[[nn.Module], nn.Module],
) -> None:
    """DDP fills other buckets after its first backward pass, in the order in which gradients came;
    FSDP2 makes the storages that it gathers into.
    """

    def script() -> None:
        dist.init_process_group("nccl")
        model: nn.Module = nn.Sequential(nn.Linear(D, 4 * D), nn.Linear(4 * D, D)).cuda()
        model = parallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(4, D, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert likes(course_of(traced(script, "2xH100-SXM"))) == [1, 1, 1]


def test_what_is_printed_now_and_then_makes_no_other_step() -> None:
    def script() -> None:
        model = nn.Linear(D, D).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = model(torch.ones(4, D, device="cuda")).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 2 == 0:
                print(loss.item())

    assert likes(course_of(traced(script))) == [1, 1, 1, 1]


def experiments() -> None:
    for width in (D, 2 * D):
        model = nn.Linear(width, width, bias=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(4, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def accounted(step: object = None) -> Ledger:
    ledger = torchtally.account(traced(experiments), step=step)  # type: ignore[arg-type]
    ledger.check()
    return ledger


def test_another_model_is_another_experiment() -> None:
    course = course_of(traced(experiments))
    assert [step.experiment for step in course.steps] == [1, 1, 2, 2]
    assert likes(course) == [1, 1, 3, 3]


def test_a_run_of_several_experiments_is_shown_whole() -> None:
    """A product forward and one for the weight: 4 x 4 x D x D FLOPs a step, then with 2 D."""
    ledger = accounted()
    assert ledger.period == "the whole run (4 training steps)"
    assert ledger.total.flops_matmul == 2 * (4 * 4 * D * D) + 2 * (4 * 4 * 4 * D * D)


@pytest.mark.thorough
def test_every_step_can_be_shown() -> None:
    small, large = 4 * 4 * D * D, 4 * 4 * 4 * D * D
    flops = [accounted(step).total.flops_matmul for step in (1, 2, 3, 4)]
    assert flops == [small, small, large, large]
    assert [accounted(step).period for step in (1, 2, 3, 4)] == [
        "step 1 (with all before it)", "steady-state step 2",
        "step 3 (the first of another model)", "steady-state step 4",
    ]  # fmt: skip
    assert accounted((2, 3)).total.flops_matmul == small + large
    assert accounted((2, 3)).period == "steps 2 to 3"


@pytest.mark.thorough
def test_steps_make_the_whole_run() -> None:
    """Nothing ran after the last step, and nothing is evaluation."""
    parts = [accounted(step).total.flops for step in (1, 2, 3, 4)]
    assert sum(parts) == accounted("all").total.flops


@pytest.mark.parametrize("step", [5, (1, 5), (3, 2)])
def test_a_step_that_was_not_run_is_an_error(step: object) -> None:
    with pytest.raises(UsageError, match=r"completed steps 1 to 4"):
        accounted(step)


def test_a_second_optimizer_of_the_same_weights_is_the_same_experiment() -> None:
    def script() -> None:
        model = nn.Linear(D, D).cuda()
        for _ in range(2):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.ones(4, D, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    assert [step.experiment for step in course_of(traced(script)).steps] == [1, 1, 1, 1]


def test_without_a_step_the_whole_run_is_the_period() -> None:
    def script() -> None:
        nn.Linear(D, D).cuda()(torch.ones(4, D, device="cuda"))

    course = course_of(traced(script))
    assert course.steps == ()
    assert course.default_period().name == "the whole run (no training step was completed)"
    assert {op.phase for op in course.trace.ops} == {Phase.FORWARD}
