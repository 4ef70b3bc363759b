"""What the values of masks and offsets say of who attends to whom, as literals of a call.

S, T: queries, keys.

A kernel that is given a mask as a tensor computes all S * T points; how many of them the model asks
for are facts that only the mask's values know. Of packed sequences the lengths are, which are the
differences of their offsets.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from torchtally.trace import Literal
from torchtally.virtual import values
from torchtally.virtual.storage import virtual_of

BIASES = ("attn_mask", "attn_bias", "bias")
"""What attention operators call a mask that is added to the scores."""
OFFSETS = {
    "lengths_q": ("cum_seq_q", "cu_seqlens_q", "cu_seq_q"),
    "lengths_k": ("cum_seq_k", "cu_seqlens_k", "cu_seq_k"),
}
"""The literal, and the arguments from which it follows."""


def literals_of(named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Literal]]:
    """Literals of an attention operator's tensors, by the names of their arguments."""
    for name, tensor in named_tensors:
        if name in BIASES:
            virtual = virtual_of(tensor)
            if virtual is not None and virtual.attended is not None:
                yield "attended", virtual.attended
        for literal, offsets in OFFSETS.items():
            if name in offsets and (real := values.real_of(tensor)) is not None:
                yield literal, tuple(real.diff().tolist())
