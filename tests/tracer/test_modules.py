"""Which module an operator belongs to, by its path in the outermost module called."""

import sys

import torch
from torch import Tensor, nn

from tests.traces import ops, traced
from torchtally.trace import Phase, Trace


def products(trace: Trace, phase: Phase = Phase.FORWARD) -> list[tuple[str, str]]:
    """(module, class) of every product."""
    matches = [op for op in ops(trace, phase=phase) if op.call.name in ("aten.mm", "aten.addmm")]
    return [(op.site.module, op.site.module_class) for op in matches]


def data() -> Tensor:
    return torch.ones(2, 4, device="cuda")


def linear() -> nn.Linear:
    return nn.Linear(4, 4, bias=False)


class Pair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(x))
        return output


def test_the_root_has_no_name_but_a_class():
    def script() -> None:
        linear().cuda()(data())

    assert products(traced(script)) == [("", "Linear")]


def test_children_are_named_by_their_path():
    def script() -> None:
        Pair(linear(), nn.Sequential(linear(), nn.ReLU(), linear())).cuda()(data())

    trace = traced(script)
    assert products(trace) == [("first", "Linear"), ("second.0", "Linear"), ("second.2", "Linear")]
    (relu,) = ops(trace, "aten.relu")
    assert (relu.site.module, relu.site.module_class) == ("second.1", "ReLU")


def test_backward_belongs_to_the_forwards_module():
    def script() -> None:
        Pair(linear(), linear()).cuda()(data().requires_grad_()).sum().backward()

    assert products(traced(script), Phase.BACKWARD) == [
        ("second", "Linear"), ("second", "Linear"), ("first", "Linear"), ("first", "Linear"),
    ]  # fmt: skip


def test_operators_outside_any_module():
    def script() -> None:
        (data() @ data().t()).relu()

    trace = traced(script)
    assert {(op.site.module, op.site.module_class) for op in ops(trace)} == {("", "")}


def test_a_shared_module_has_its_first_name():
    def script() -> None:
        shared = linear()
        Pair(shared, shared).cuda()(data())

    assert products(traced(script)) == [("first", "Linear")] * 2


def test_a_child_called_alone_keeps_its_name():
    def script() -> None:
        model = Pair(linear(), linear()).cuda()
        model(data())
        model.second(data())

    assert products(traced(script)) == [
        ("first", "Linear"), ("second", "Linear"), ("second", "Linear"),
    ]  # fmt: skip


def test_a_module_that_no_tree_knows_is_named_below_its_caller():
    class Hidden(nn.Module):
        """Keeps its layer where torch does not see it."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = [linear().cuda()]

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.layers[0](x)
            return output

    def script() -> None:
        Pair(Hidden(), linear()).cuda()(data())

    assert products(traced(script)) == [("first.Linear", "Linear"), ("second", "Linear")]


def test_two_roots_are_told_apart_by_their_classes():
    def script() -> None:
        Pair(linear(), linear()).cuda()(data())
        nn.Sequential(linear()).cuda()(data())

    assert products(traced(script)) == [("first", "Linear"), ("second", "Linear"), ("0", "Linear")]


def test_a_module_called_by_its_method_alone_is_no_module():
    """`model.forward(x)` goes past `__call__`: its children are roots then."""

    def script() -> None:
        Pair(linear(), linear()).cuda().forward(data())

    assert [module_class for _, module_class in products(traced(script))] == ["Linear"] * 2


def test_an_error_in_forward_leaves_no_module_behind():
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError

    def script() -> None:
        try:
            Fails()(data())
        except ValueError:
            torch.sin(data())

    (sine,) = ops(traced(script), "aten.sin")
    assert (sine.site.module, sine.site.module_class) == ("", "")


def test_a_module_list_and_a_dict():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(linear() for _ in range(2))
            self.heads = nn.ModuleDict({"a": linear()})

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            output: Tensor = self.heads["a"](x)
            return output

    def script() -> None:
        Model().cuda()(data())

    assert [module for module, _ in products(traced(script))] == ["blocks.0", "blocks.1", "heads.a"]


def test_torchs_own_transformer_is_named_throughout():
    def script() -> None:
        model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).cuda()
        x = torch.ones(1, 3, 8, device="cuda")
        model(x, x)

    names = {op.site.module for op in ops(traced(script))}
    assert "encoder.layers.0.self_attn" in names
    assert "decoder.layers.0.multihead_attn" in names
    assert "decoder.layers.0.linear1" in names


def test_a_profiler_with_stacks_finds_the_module() -> None:
    """It takes what is called `self` in the frame of `nn.Module.__call__` for the module."""

    def script() -> None:
        pair = Pair(linear(), linear()).cuda()
        with torch.profiler.profile(with_stack=True):
            pair(data())

    assert products(traced(script)) == [("first", "Linear"), ("second", "Linear")]


def test_a_profiler_with_stacks_imports_nothing_while_it_records() -> None:
    """The names of code that is freed again are no text when the profile is read."""
    ranges = "torch.profiler._cupti_monitor"
    loaded: list[bool] = []

    def script() -> None:
        net = linear().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.profiler.profile(with_stack=True):
            loaded.append(ranges in sys.modules)
            net(data()).sum().backward()
            optimizer.step()
            loaded.append(ranges in sys.modules)

    sys.modules.pop(ranges, None)
    vars(torch.profiler).pop("_cupti_monitor", None)
    traced(script)
    assert loaded[0] == loaded[1]


def test_a_shared_module_is_in_the_one_that_calls_it():
    shared = Pair(linear(), linear())

    def script() -> None:
        Pair(Pair(shared, linear()), nn.Sequential(shared)).cuda()(data())

    assert products(traced(script)) == [
        ("first.first.first", "Linear"), ("first.first.second", "Linear"),
        ("first.second", "Linear"),
        ("second.0.first", "Linear"), ("second.0.second", "Linear"),
    ]  # fmt: skip


def test_a_shared_module_in_a_list_is_named_by_it():
    class Listed(nn.Module):
        def __init__(self, *modules: nn.Module) -> None:
            super().__init__()
            self.list = nn.ModuleList(modules)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([module(x) for module in self.list]).sum(0)

    shared = linear()

    def script() -> None:
        Pair(shared, Listed(linear(), shared)).cuda()(data())

    assert products(traced(script)) == [
        ("first", "Linear"), ("second.list.0", "Linear"), ("second.list.1", "Linear"),
    ]  # fmt: skip
