"""Recurrent networks: every weight matrix meets every token once."""

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from tests.work.calls import call, cost, given, recorded, spec
from torchtally.trace import TensorSpec
from torchtally.work import Kind, cost_of


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("network", "multiply_adds"),
    [
        (nn.RNN(5, 6), 6 * 5 + 6 * 6),
        (nn.GRU(5, 6), 3 * (6 * 5 + 6 * 6)),
        (nn.LSTM(5, 6), 4 * (6 * 5 + 6 * 6)),
        (nn.LSTM(5, 6, num_layers=2), 4 * (6 * 5 + 3 * 6 * 6)),
        (nn.LSTM(5, 6, bidirectional=True), 2 * 4 * (6 * 5 + 6 * 6)),
        # gates of 6 see 5 inputs and 3 projected states; the projection is 3 x 6
        (nn.LSTM(5, 6, proj_size=3), 4 * (6 * 5 + 6 * 3) + 3 * 6),
    ],
)
def test_recurrent(network: nn.RNNBase, multiply_adds: int) -> None:
    tokens = torch.rand(7, 2, 5)
    with torch.inference_mode():
        composite = recorded(network, tokens)
    (one,) = [one for one in composite.calls if cost_of(one)[0] is Kind.RECURRENT]
    assert cost(one).flops == 2 * 14 * multiply_adds


def test_cudnn_recurrent_backward_is_twice_forward() -> None:
    weights = [given("weight", 24, 5), given("weight", 24, 6), given("weight", 24)]
    tokens = [given("input", 7, 2, 5), *weights, given("weight_buf", 300)]
    forward = cost(call("aten._cudnn_rnn", tokens, (7, 2, 6), mode=2))
    assert forward.flops == 2 * 14 * 24 * 11
    assert forward.bytes_read == 4 * (70 + 24 * 12)
    for wanted, times in ((True, 2), (False, 1)):
        output_mask = (True, True, True, wanted)
        one = call("aten._cudnn_rnn_backward", tokens, (7, 2, 5), output_mask=output_mask)
        assert cost(one).flops == times * forward.flops


LAYERS = [
    ({}, [11]),
    ({"num_layers": 2}, [11, 12]),  # the second layer sees 6 numbers a token, and its own 6
    ({"bidirectional": True}, [11, 11]),
    ({"num_layers": 2, "bidirectional": True}, [11, 11, 18, 18]),  # both directions' 12, own 6
    ({"bias": False}, [11]),
    ({"batch_first": True}, [11]),
]
"""Options of `LSTM(5, 6)`, and what each of its 4 * 6 gates multiplies, layer by layer."""


@pytest.mark.parametrize(("options", "seen"), LAYERS)
def test_a_layer_on_the_cpu_and_its_backward(options: dict[str, bool], seen: list[int]) -> None:
    """24 gates of 14 tokens."""
    network = nn.LSTM(5, 6, **options)  # type: ignore[arg-type]
    ran = recorded(lambda: network(torch.rand(7, 2, 5))[0].sum().backward())
    forward = ran.named("aten.mkldnn_rnn_layer")
    backward = ran.named("aten.mkldnn_rnn_layer_backward")
    assert [cost(invocation).flops for invocation in forward] == [2 * 14 * 24 * n for n in seen]
    assert [cost(invocation).flops for invocation in backward] == [
        4 * 14 * 24 * n for n in reversed(seen)
    ]
    assert {cost_of(invocation)[0] for invocation in (*forward, *backward)} == {Kind.RECURRENT}


def layer_inputs(*, has_biases: bool) -> list[TensorSpec]:
    """Of a layer of 6 on 7 steps of 2 x 5."""
    bias = (24,) if has_biases else (24, 5)
    shapes = [(7, 2, 5), (24, 5), (24, 6), bias, bias, (2, 6), (2, 6)]
    names = ["input", *(f"weight{n}" for n in range(4)), "hx_", "cx_"]
    return [given(name, *shape) for name, shape in zip(names, shapes, strict=True)]


@pytest.mark.parametrize(("has_biases", "bias_elements"), [(True, 2 * 24), (False, 0)])
def test_a_layer_reads_and_writes_everything_once(has_biases: bool, bias_elements: int) -> None:
    """Biases that are not there are zeros that nobody reads, in shapes of matrices."""
    inputs = layer_inputs(has_biases=has_biases)
    workspace = spec(1000, dtype="uint8")
    results = ((7, 2, 6), (2, 6), (2, 6))
    one = cost(call("aten.mkldnn_rnn_layer", inputs, *results, workspace, has_biases=has_biases))
    assert one.flops == 2 * 14 * 24 * (5 + 6)
    assert one.bytes_read == 4 * (70 + 24 * 11 + bias_elements + 2 * 12)
    assert one.bytes_written == 4 * (84 + 2 * 12) + 1000


@pytest.mark.parametrize(("has_biases", "bias_elements"), [(True, 2 * 24), (False, 0)])
def test_the_backward_of_a_layer_counts_its_weights_from_one(
    has_biases: bool, bias_elements: int
) -> None:
    specs = layer_inputs(has_biases=has_biases)
    names = ["input", *(f"weight{n}" for n in range(1, 5)), "hx_", "cx_tmp"]
    inputs = [
        replace(layer_input, argument=name) for layer_input, name in zip(specs, names, strict=True)
    ]
    kept = [given("output", 7, 2, 6), given("hy_", 2, 6), given("cy_", 2, 6)]
    rest = [given("grad_output", 7, 2, 6), given("workspace", 1000, dtype="uint8")]
    results = ((7, 2, 5), (24, 5), (24, 6), (24,), (24,), (2, 6), (2, 6))
    one = cost(
        call("aten.mkldnn_rnn_layer_backward", [*inputs, *kept, *rest], *results,
             has_biases=has_biases)
    )  # fmt: skip
    assert one.flops == 2 * (2 * 14 * 24 * (5 + 6))
    assert one.bytes_read == 4 * (70 + 24 * 11 + bias_elements + 4 * 12 + 2 * 84) + 1000
    assert one.bytes_written == 4 * (70 + 24 * 11 + 2 * 24 + 2 * 12)


def test_gates_of_a_cell_are_elementwise() -> None:
    gates = [given("input_gates", 2, 24), given("hidden_gates", 2, 24), given("cx", 2, 6)]
    kind, one = cost_of(call("aten._thnn_fused_lstm_cell", gates, (2, 6), (2, 6), (2, 24)))
    assert kind is Kind.ELEMENTWISE
    assert one.flops == 21 * 12
