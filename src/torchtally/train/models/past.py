"""The KV cache: keys and values of tokens that a model has seen, each computed once.

Axes: `sequence` new tokens, `total` with those before; `kv_heads`, `head_dim`.
"""

from jaxtyping import Float
from torch import Tensor

Next = Float[Tensor, "batch kv_heads sequence head_dim"]
Total = Float[Tensor, "batch kv_heads total head_dim"]


class Past:
    """Buffers of one layer for a whole context, allocated with the first tokens."""

    def __init__(self, context: int) -> None:
        self.tokens = 0
        self._context = context
        self._buffers: tuple[Tensor, ...] = ()

    def extend(self, keys: Next, values: Next) -> tuple[Total, Total]:
        """Add the next tokens'; those of all tokens so far."""
        batch, heads, sequence, head_dim = keys.shape
        if not self._buffers:
            shape = (batch, heads, self._context, head_dim)
            self._buffers = (keys.new_empty(shape), values.new_empty(shape))
        begin, self.tokens = self.tokens, self.tokens + sequence
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, begin : self.tokens] = new
        all_keys, all_values = (buffer[:, :, : self.tokens] for buffer in self._buffers)
        return all_keys, all_values
