"""LSTMs as the CPU runs them: by oneDNN, held against the real run byte for byte."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.real.cpu_profile import Program, differences, profiled, simulated
from tests.traces import names, ops, traced
from tests.virtual.test_host_chip import HOST
from torchtally.trace import Trace
from torchtally.virtual import kernels, shapes
from torchtally.virtual.operators import KNOWN

aten = torch.ops.aten
FORWARD, BACKWARD = "aten.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer_backward"

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)
needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here"
)
pytestmark = needs_onednn


def steps(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    uses_states: bool = False,
    autocast: bool = False,
    **options: Any,
) -> Program:
    """Twice: trained, then run without gradients, on the same shapes."""

    def program(device: str) -> Callable[[], None]:
        torch.manual_seed(0)
        network = nn.LSTM(shape[-1], 60, **options).to(device, dtype)
        x = torch.randn(shape, device=device, dtype=dtype)

        def run() -> None:
            for _ in range(2):
                with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
                    y, (h, c) = network(x)
                loss = y.sum() + h.sum() + c.sum() if uses_states else y.sum()
                loss.backward()
                network.zero_grad()
                with torch.no_grad():
                    network(x)

        return run

    return program


PROGRAMS = {
    "one layer": steps((7, 2, 50)),
    "states are used": steps((7, 2, 50), uses_states=True),
    "two layers": steps((7, 2, 50), num_layers=2),
    "two directions": steps((7, 2, 50), bidirectional=True),
    "all of it": steps((2, 7, 50), num_layers=2, bidirectional=True, batch_first=True, dropout=0.5),
    "no biases": steps((7, 2, 50), num_layers=2, bias=False),
    "one sequence": steps((7, 50), num_layers=2),
    "bfloat16": steps((7, 2, 50), torch.bfloat16),
    "autocast": steps((7, 2, 50), autocast=True),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[needs_bfloat16] if name in ("bfloat16", "autocast") else [])
        for name in PROGRAMS
    ],
)
def test_every_storage_lives_as_on_the_cpu(name: str) -> None:
    simulation = simulated(PROGRAMS[name])
    run = profiled(PROGRAMS[name], simulation.operators)
    assert differences(simulation.course, run.course) == []
    assert simulation.course == run.course
    assert simulation.course.peak_bytes == run.course.peak_bytes > 0


@pytest.fixture
def no_known_results() -> Iterator[None]:
    """For tests that change a shape function: of what sessions before and after have as well."""
    KNOWN.operators.clear()
    yield
    KNOWN.operators.clear()


def test_a_step_by_step_composition_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before oneDNN's layer was known is not what runs for real."""
    monkeypatch.delitem(kernels.HOST_KERNELS, aten.lstm.input)
    simulation = simulated(PROGRAMS["one layer"])
    with pytest.raises(AssertionError, match="never ran for real"):
        profiled(PROGRAMS["one layer"], simulation.operators)


@pytest.mark.usefixtures("no_known_results")
def test_an_empty_workspace_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own shape function has it."""
    monkeypatch.delitem(shapes.SHAPES, aten.mkldnn_rnn_layer.default)
    simulation = simulated(PROGRAMS["one layer"])
    run = profiled(PROGRAMS["one layer"], simulation.operators)
    assert any(
        "only for real" in difference for difference in differences(simulation.course, run.course)
    )
    assert simulation.course.peak_bytes < run.course.peak_bytes


@pytest.mark.usefixtures("no_known_results")
def test_one_gradient_for_two_biases_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own shape function has it: autograd would have to copy it."""
    monkeypatch.delitem(shapes.SHAPES, aten.mkldnn_rnn_layer_backward.default)
    simulation = simulated(PROGRAMS["one layer"])
    with pytest.raises(AssertionError, match="never ran for real"):
        profiled(PROGRAMS["one layer"], simulation.operators)


# The workspace.


def real_workspace(T: int, B: int, I: int, H: int, dtype: torch.dtype) -> Tensor:  # noqa: E741
    sizes = [(T, B, I), (4 * H, I), (4 * H, H), (4 * H,), (4 * H,), (B, H), (B, H)]
    tensors = [torch.zeros(size, dtype=dtype) for size in sizes]
    literals = (False, [], kernels.LSTM, H, 1, True, False, False, True)
    workspace: Tensor = aten.mkldnn_rnn_layer.default(*tensors, *literals)[3]
    return workspace


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)]
)
def test_the_workspace_is_as_large_as_onednns(dtype: torch.dtype) -> None:
    chosen = random.Random(0)
    for _ in range(40):
        T, B = chosen.choice([1, 2, 7, 13]), chosen.choice([1, 3, 8])
        I, H = (chosen.choice([1, 6, 16, 33, 64, 128, 200, 256]) for _ in range(2))  # noqa: E741
        expected = real_workspace(T, B, I, H, dtype)
        assert shapes.rnn_workspace_bytes(T, B, I, H, dtype) == expected.nbytes, (T, B, I, H)


def test_the_workspace_of_a_small_layer_by_hand() -> None:
    """One step of one number: seven parts, each less than a page."""
    assert shapes.rnn_workspace_bytes(1, 1, 1, 1, torch.float32) == 7 * 4096


@pytest.mark.parametrize(
    ("elements", "element_bytes", "size"), [(1, 4, 16), (17, 4, 32), (256, 4, 272), (250, 2, 288)]
)
def test_rows_are_lines_and_no_multiple_of_256(
    elements: int, element_bytes: int, size: int
) -> None:
    assert shapes.leading_size(elements, element_bytes) == size


# Which LSTMs oneDNN runs.


def on_cpu(network: nn.Module, x: Callable[[], Any], *, trains: bool = True) -> Trace:
    def run() -> None:
        with torch.set_grad_enabled(trains):
            y = network.to("cuda")(x())[0]
            if trains:
                (y if isinstance(y, Tensor) else y.data).sum().backward()

    return traced(run, HOST)


def sequences() -> Tensor:
    return torch.ones(7, 2, 5, device="cuda")


def test_one_call_for_each_layer_and_direction() -> None:
    trace = on_cpu(nn.LSTM(5, 6, num_layers=3, bidirectional=True), sequences)
    assert Counter(names(trace))[FORWARD] == Counter(names(trace))[BACKWARD] == 6
    assert [op.call.literal("reverse") for op in ops(trace, FORWARD)] == [False, True] * 3
    assert {op.call.inputs[0].shape for op in ops(trace, FORWARD)[2:]} == {(7, 2, 12)}


def test_no_workspace_without_gradients_after_one_with() -> None:
    """The same signature, and other results."""
    network = nn.LSTM(5, 6)

    def run() -> None:
        there = network.to("cuda")
        there(sequences())[0].sum().backward()
        with torch.no_grad():
            there(sequences())
        with torch.inference_mode():
            there(sequences())

    counts = [len(op.call.outputs) for op in ops(traced(run, HOST), FORWARD)]
    assert counts == [4, 3, 3]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("network", "dtype"),
    [
        (nn.LSTM(5, 6, proj_size=3), torch.float32),
        (nn.LSTM(5, 6), torch.float64),
        (nn.LSTM(5, 6), torch.float16),
        (nn.GRU(5, 6), torch.float32),
        (nn.RNN(5, 6), torch.float32),
    ],
)
def test_all_others_are_composed_step_by_step(network: nn.Module, dtype: torch.dtype) -> None:
    counts = Counter(names(on_cpu(network.to(dtype), lambda: sequences().to(dtype))))
    assert counts[FORWARD] == counts[BACKWARD] == 0
    assert counts["aten.addmm"] + counts["aten.mm"] + counts["aten.bmm"] >= 7


def test_packed_sequences_are_composed_step_by_step() -> None:
    trace = on_cpu(nn.LSTM(5, 6), lambda: pack_padded_sequence(sequences(), torch.tensor([7, 4])))
    counts = Counter(names(trace))
    assert counts[FORWARD] == 0
    assert counts["aten.sigmoid_"] == 3 * 7


def test_the_scripts_own_setting_counts() -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        trace = on_cpu(nn.LSTM(5, 6), sequences)
    assert FORWARD not in names(trace)


def test_gradients_are_the_hosts() -> None:
    """Small enough for values: the whole way through oneDNN, forward and backward."""
    torch.manual_seed(0)
    network = nn.LSTM(5, 6)
    x = torch.randn(7, 2, 5)
    network(x)[0].square().sum().backward()
    expected = [
        parameter.grad.tolist() for parameter in network.parameters() if parameter.grad is not None
    ]
    network.zero_grad()
    gradients: list[Any] = []

    def run() -> None:
        there = network.to("cuda")
        there(x.to("cuda"))[0].square().sum().backward()
        gradients.extend(
            parameter.grad.tolist()
            for parameter in there.parameters()
            if parameter.grad is not None
        )

    assert not traced(run, HOST).placeholders
    for ours, theirs in zip(gradients, expected, strict=True):
        assert torch.allclose(torch.tensor(ours), torch.tensor(theirs), atol=1e-6)
