"""Gradients and updates of small trainings, counted by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtally
from torchtally.errors import UsageError
from torchtally.numerics.counting import gradient_counts, half_steps
from torchtally.numerics.layers import LayerNumbers, all_layers
from torchtally.numerics.watch import NumbersWatch
from torchtally.numerics.worries import worries


def clock() -> Callable[[], float]:
    """A second from one look to the next."""
    seconds = iter(range(10**6))
    return lambda: float(next(seconds))


def module_of(weights: list[float], dtype: torch.dtype) -> nn.Module:
    module = nn.Module()
    module.w = nn.Parameter(torch.tensor(weights, dtype=dtype))
    return module


def one_step(
    weights: list[float], gradient: list[float], dtype: torch.dtype, **how: Any
) -> LayerNumbers:
    """Counts of a step of SGD with a learning rate of 1: the update is the gradient."""
    module = module_of(weights, dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    watch = NumbersWatch(module, optimizer, **{"say": lambda text: None, **how})
    (parameter,) = module.parameters()
    parameter.grad = torch.tensor(gradient, dtype=dtype)
    optimizer.step()
    (layer,) = watch.layers
    return layer


def test_lost_updates_of_bf16_weights_by_hand() -> None:
    """From 1 to the next number it is 2**-7 upwards and 2**-8 downwards: of 1 - 2**-9, a tie, and 1
    + 2**-9 a step is too small. The last element has no gradient.
    """
    layer = one_step([1, 1, 1, 1, 1], [2.0**-9, 2.0**-8, -(2.0**-9), 1.0, 0.0], torch.bfloat16)
    assert (layer.updates, layer.lost_updates) == (4, 2)


def test_lost_updates_of_float32_weights_by_hand() -> None:
    """Half a step of bf16 is 2**-8 at 1 and 2**-7 at 2 and 3; no step is half of itself."""
    weights = [1, 1, 2, 3, 3, 0, 5]
    gradient = [2.0**-9, 2.0**-8, 2.0**-8, 2.0**-7, 2.0**-8, 1e-9, 0]
    layer = one_step(weights, gradient, torch.float32)
    assert (layer.updates, layer.lost_updates) == (6, 3)


def test_half_a_step_of_bf16_is_that_of_torch() -> None:
    weights = torch.cat([torch.randn(1000) * 10.0**power for power in range(-30, 30, 10)])
    weights = weights.bfloat16().float().abs()
    above = torch.nextafter(weights.bfloat16(), torch.tensor(torch.inf).bfloat16()).float()
    assert torch.equal(half_steps(weights), (above - weights) / 2)


def test_lost_updates_of_a_training_are_those_counted_with_it() -> None:
    """A bf16 layer with AdamW, whose weights are compared before and after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = NumbersWatch(model, optimizer, every=2, say=lambda text: None)
    counted = {}
    for step in range(1, 6):
        rows = torch.randn(32, 8).bfloat16()
        (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        stayed = sum(
            int(((was == now) & (gradient != 0)).sum())
            for was, now, gradient in zip(before, model.parameters(), gradients, strict=True)
        )
        counted[step] = (stayed, watch.total.lost_updates, watch.counted_step)
    assert watch.counts == 3  # steps 1, 2 and 4
    for step in (1, 2, 4):
        stayed, lost, counted_step = counted[step]
        assert (lost, counted_step) == (stayed, step)
    assert counted[5][2] == 4
    assert [layer.name for layer in watch.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_gradients_that_underflow_by_hand() -> None:
    """fp16's smallest number is 2**-24, half of it is zero; its largest is 65504, and 65520 is
    rounded to inf. In e5m2 1 may be 2**15 times as large, and half of its smallest is 2**-17.
    """
    gradient = torch.tensor([2.0**-25, 2.0**-24, 65519, 65520, 0, torch.inf, 1])
    numbers, nonfinite, largest, under, over, _ = gradient_counts(gradient, 1.0).tolist()
    assert (numbers, nonfinite, largest) == (5, 1, 65520)
    assert (under, over) == (1, 2)
    gradient = torch.tensor([1.0, 2.0**-32, 2.0**-31.5, -(2.0**-33)])
    assert gradient_counts(gradient, 1.0).tolist()[-1] == 2
    assert gradient_counts(gradient, 2.0**10).tolist()[3] == 0
    assert gradient_counts(torch.tensor([1.0, 2.0**-35]), 2.0**10).tolist()[3] == 1


def test_gradients_underflow_as_torch_rounds_them() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(10_000) * torch.exp2(torch.rand(10_000) * 60 - 40)
    counts = gradient_counts(gradient, 8.0).tolist()
    half = (gradient * 8).half()
    assert counts[3] == int((half == 0).sum())
    assert counts[4] == int(half.isinf().sum())
    power = 0
    while (gradient * 2.0 ** (power + 1)).abs().max() <= 57344:
        power += 1
    while (gradient * 2.0**power).abs().max() > 57344:
        power -= 1
    fp8 = (gradient * 2.0**power).to(torch.float8_e5m2)
    assert counts[5] == int((fp8.float() == 0).sum())


def test_the_loss_scale_is_that_of_the_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    module = module_of([1.0], torch.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    watch = NumbersWatch(module, optimizer, scaler=scaler, say=lambda text: None)
    scaler.scale(module.w * 2.0**-26).backward()
    scaler.step(optimizer)
    (layer,) = watch.layers
    assert (watch.loss_scale, layer.largest, layer.fp16_underflows) == (4.0, 2.0**-26, 0)
    assert watch.values()["numbers/fp16_headroom"] == 65504 * 2.0**24


def test_updates_rounded_at_random_are_kept_on_average() -> None:
    layer = one_step([1.0], [1e-6], torch.bfloat16, keeps_on_average=True)
    assert layer.lost_updates is None
    assert layer.lost_update_share is None


def test_a_master_weight_says_what_the_update_is() -> None:
    """The weight in bf16 stays; its master moves by less than half a step: lost without it."""
    module = module_of([1.0, 1.0], torch.bfloat16)
    master = torch.tensor([1.0, 1.0])
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    watch = NumbersWatch(module, optimizer, weight_of=lambda parameter: master, say=str)
    module.w.grad = torch.ones(2, dtype=torch.bfloat16)

    def move_master(*_: object) -> None:
        master.sub_(torch.tensor([2.0**-9, 2.0**-6]))

    optimizer.register_step_pre_hook(move_master)
    optimizer.step()
    assert (watch.total.updates, watch.total.lost_updates) == (2, 1)


def test_a_step_with_a_closure_has_its_gradients_inside() -> None:
    module = module_of([1.0], torch.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    watch = NumbersWatch(module, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (module.w * 2.0**-9).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (watch.total.largest, watch.total.lost_updates) == (2.0**-9, 1)


def test_logs_cost_and_table() -> None:
    """The clock goes on by a second at each look: a count of two parts takes two."""
    logged: list[tuple[dict[str, float], int]] = []
    module = module_of([1.5, 1.0], torch.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    watch = NumbersWatch(
        module, optimizer, every=3, clock=clock(), say=str,
        log=lambda values, step: logged.append((values, step)),
    )  # fmt: skip
    assert watch.values() == {}
    for _ in range(4):
        module.w.grad = torch.tensor([2.0**-9, 1.0])
        optimizer.step()
    assert [step for _, step in logged] == [1, 3]
    assert logged[0][0]["numbers/lost_update_share"] == 0.5
    assert watch.cost_s == 4
    assert watch.values(by_layer=True)["numbers/lost_update_share/w"] == 0.5
    assert watch.table().column("lost_update_share") == (0.5,)
    assert "lost in bf16" in str(watch)
    watch.close()
    optimizer.step()
    assert watch.steps == 4


def layer(**how: Any) -> LayerNumbers:
    whole = dict.fromkeys(("numbers", "updates"), 100)
    none = ("nonfinite", "fp16_underflows", "fp16_overflows", "fp8_underflows", "lost_updates")
    return LayerNumbers(**{"name": "w", "largest": 1.0, **whole, **dict.fromkeys(none, 0), **how})


@pytest.mark.parametrize(
    ("counts", "how", "kinds"),
    [
        ({"fp16_underflows": 6}, {"loss_scale": 8.0}, ["underflow"]),
        ({"fp16_underflows": 5}, {"loss_scale": 8.0}, []),
        ({"fp16_underflows": 6}, {}, []),  # neither fp16 nor a scaler
        ({"fp16_underflows": 6}, {"has_fp16": True}, ["underflow"]),
        ({"largest": 1.0}, {"loss_scale": 65504.0}, ["headroom"]),
        ({"largest": 1.0}, {"loss_scale": 32752.0}, []),
        ({"lost_updates": 51}, {"has_bf16_weights": True}, ["lost"]),
        ({"lost_updates": 51}, {}, []),
        ({"lost_updates": None}, {"has_bf16_weights": True}, []),
    ],
)
def test_a_warning_where_it_begins_to_matter(
    counts: dict[str, Any], how: dict[str, Any], kinds: list[str]
) -> None:
    usual = {"loss_scale": None, "has_fp16": False, "has_bf16_weights": False}
    assert [kind for kind, _ in worries([layer(**counts)], **{**usual, **how})] == kinds


def test_each_warning_is_said_once() -> None:
    said: list[str] = []
    module = module_of([1.0], torch.bfloat16)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    NumbersWatch(module, optimizer, every=1, say=said.append)
    for _ in range(3):
        module.w.grad = torch.tensor([2.0**-12]).bfloat16()
        optimizer.step()
    (text,) = said
    assert "100.0 % of the updates are lost" in text
    assert "in w " in text


def test_layers_add_up() -> None:
    total = all_layers([layer(lost_updates=2), layer(largest=3.0, lost_updates=1)])
    assert (total.updates, total.lost_updates, total.largest) == (200, 3, 3.0)


def test_every_must_be_a_step() -> None:
    module = module_of([1.0], torch.float32)
    with pytest.raises(UsageError, match="every"):
        NumbersWatch(module, torch.optim.SGD(module.parameters(), lr=1.0), every=0)


def test_numbers_of_a_model() -> None:
    """2**-25 is zero in fp16, of the gradient as of the weight."""
    module = module_of([1.0, 2.0**-25], torch.float32)
    module.w.grad = torch.tensor([2.0**-25, 2.0**-25])
    numbers = torchtally.numbers(module, ["fp16"])
    assert [tensor.name for tensor in numbers.tensors] == ["w", "w.grad"]
    assert [tensor.losses[0].underflows for tensor in numbers.tensors] == [1, 2]
    assert "What formats lose" in str(numbers)


def test_a_loss_is_the_same_with_a_watch() -> None:
    def losses(is_watched: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if is_watched:
            NumbersWatch(model, optimizer, every=1)
        kept = []
        for _ in range(5):
            loss: Tensor = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss.item())
        return kept

    assert losses(True) == losses(False)
