"""Recurrent networks: every weight matrix meets every token once."""

import pytest
import torch
from torch import nn

from tests.cost.calls import call, cost, given, recorded
from torchtally.cost import Kind, cost_of


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


def test_gates_of_a_cell_are_elementwise() -> None:
    gates = [given("input_gates", 2, 24), given("hidden_gates", 2, 24), given("cx", 2, 6)]
    kind, one = cost_of(call("aten._thnn_fused_lstm_cell", gates, (2, 6), (2, 6), (2, 24)))
    assert kind is Kind.ELEMENTWISE
    assert one.flops == 21 * 12
