"""Recurrent networks.

B*S: tokens.  G: gates (1 plain, 3 GRU, 4 LSTM).  I, H, P: input, hidden and projected sizes.

Every weight matrix, (G*H, I), (G*H, H or P), and (P, H) with a projection, meets every token once:
2 * B*S * elements of all matrices, layers and directions being more matrices in the list. The
gates' own arithmetic is not counted, as a product's bias is not. Weights are read once, though a
kernel that cannot keep them on chip reads them at every step.
"""

from math import prod

from torchtally.trace import Call, TensorSpec
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, is_set, mask, one_pass, rule, rules


def gates_flops(tokens: int, weights: tuple[TensorSpec, ...]) -> int:
    """Biases are the vectors of the list, matrices the rest."""
    return 2 * tokens * sum(spec.elements for spec in weights if len(spec.shape) == 2)


def tokens_of(call: Call) -> int:
    """B*S of (S, B, I) or (B, S, I), or the total of packed sequences."""
    return prod(call.inputs[0].shape[:-1])


def weights_of(call: Call) -> tuple[TensorSpec, ...]:
    return call.tensors("weight") or call.tensors("params")


PACKED_COPY = ("weight_buf",)
"""cuDNN's one buffer of all weights, of which the list holds views."""


@rule("_cudnn_rnn miopen_rnn lstm gru rnn_tanh rnn_relu _lstm_mps", kind=Kind.RECURRENT)
def network(call: Call) -> Cost:
    return one_pass(call, flops=gates_flops(tokens_of(call), weights_of(call)), unread=PACKED_COPY)


@rule("_cudnn_rnn_backward miopen_rnn_backward", kind=Kind.RECURRENT)
def network_backward(call: Call) -> Cost:
    """Cost of as many FLOPs as forward for the inputs' gradients, and again for the weights' if
    wanted.
    """
    forward = gates_flops(tokens_of(call), weights_of(call))
    of_weights = mask(call, "output_mask", 4)[3]
    return one_pass(call, flops=forward * (1 + of_weights), unread=PACKED_COPY)


CELL_WEIGHTS = ("w_ih", "w_hh")


@rule("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", kind=Kind.RECURRENT)
def cell(call: Call) -> Cost:
    weights = tuple(spec for name in CELL_WEIGHTS for spec in call.tensors(name))
    return one_pass(call, flops=gates_flops(tokens_of(call), weights))


# oneDNN's layer in one direction. The forward operator numbers its weights from 0, the backward
# one from 1: the matrices of inputs and of states, then their biases, which are not read where the
# network has none (what is given then is zeros in the shapes of the matrices).


def layer_cost(call: Call, matrices: tuple[str, str], biases: tuple[str, str], times: int) -> Cost:
    """So many products of every token with both matrices."""
    weights = tuple(spec for name in matrices for spec in call.tensors(name))
    unread = () if is_set(call, "has_biases") else biases
    return one_pass(call, flops=times * gates_flops(tokens_of(call), weights), unread=unread)


@rule("mkldnn_rnn_layer", kind=Kind.RECURRENT)
def layer(call: Call) -> Cost:
    return layer_cost(call, ("weight0", "weight1"), ("weight2", "weight3"), 1)


@rule("mkldnn_rnn_layer_backward", kind=Kind.RECURRENT)
def layer_backward(call: Call) -> Cost:
    """The inputs' gradients and the weights', whether or not anybody wants them."""
    return layer_cost(call, ("weight1", "weight2"), ("weight3", "weight4"), 2)


# A cell's gates after their products (which run as addmm): arithmetic on each hidden element.

LSTM_FLOPS = 4 * 4 + 3 + 2
"""Four gates: three adds and a sigmoid or tanh each; c = f*c + i*g; h = o*tanh(c)."""
GRU_FLOPS = 3 * 4 + 1 + 3
"""Three gates: three adds and a function each; reset times the hidden; h = n + z*(h - n)."""


rules(
    Kind.ELEMENTWISE,
    PerElement("_thnn_fused_lstm_cell", LSTM_FLOPS),
    PerElement("_thnn_fused_gru_cell", GRU_FLOPS),
    # Four gates: a product with the gradient and 2 or 3 of the slope; c and its tanh: about 22.
    PerElement("_thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl", 22, "cx"),
    # Three gates: a product with the gradient and 3 of the slope; the hidden's: about 16.
    PerElement("_thnn_fused_gru_cell_backward", 16, "grad_hy"),
)
