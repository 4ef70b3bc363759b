"""Optimizers by one kernel for many tensors (apex: csrc/multi_tensor_adam.cu, _sgd_kernel.cu)."""

from torchtally.libraries.operators.registry import define


@define(
    "apex",
    "multi_tensor_adam(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] exp_avgs, "
    "Tensor(c!)[] exp_avg_sqs, bool adam_w_mode) -> ()",
)
def multi_tensor_adam(*arguments: object) -> None:
    """Parameters and states are written to."""
