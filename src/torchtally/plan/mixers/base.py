"""What every mixer of constant state says of itself: weights, FLOPs, saved tensors, its state.

Attention keeps a key and a value of every token. These keep one state of a fixed size, and the last
few inputs of a short convolution. A new mixer is a file beside this one and a row of a family.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.plan.quantity import Quantity

if TYPE_CHECKING:  # they import the model, which has such mixers
    from torchtally.plan.activations.saved import Saved
    from torchtally.plan.activations.setting import Setting
    from torchtally.plan.architecture.weights import Weight


@dataclass(frozen=True, slots=True)
class State:
    """What one layer keeps of one sequence, however long that is."""

    channels: int
    """Of the convolution."""
    kernel: int
    """Tokens that the convolution sees, the present one among them; 0: there is no convolution."""
    numbers: int
    """Of the recurrence."""
    is_wide: bool = True
    """It is kept in float32."""
    shifted: int = 0
    """Numbers of the last token, with which the next one is mixed."""


class Recurrence(ABC):
    """A mixer with a state of constant size. Its subclasses are frozen dataclasses of sizes."""

    __slots__ = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """Label like "Mamba 2, state 128 x 64 of 80 heads"."""

    @property
    @abstractmethod
    def split(self) -> tuple[int, ...]:
        """What tensor parallelism must divide: heads, groups."""

    @property
    @abstractmethod
    def modules(self) -> Mapping[str, str]:
        """Its matrices, with what transformers calls their modules."""

    @property
    def is_beside_out_proj(self) -> bool:
        """Attention's output is called out_proj, too, in models that have such mixers."""
        return False

    @property
    def has_bound_output(self) -> bool:
        """Its kernel reads the output's matrix itself, past its module."""
        return False

    @property
    @abstractmethod
    def state(self) -> State:
        """What decoding keeps."""

    @property
    @abstractmethod
    def accesses(self) -> int:
        """Numbers that a fused scan reads and writes for a token, forward."""

    @abstractmethod
    def weights(self, d: int) -> Iterator["Weight"]:
        """Weights of one layer of a model of this width."""

    @abstractmethod
    def scan_flops(self, sequence: int) -> Quantity:
        """Forward FLOPs of one token in one layer, beside those of matrices of weights: products of
        the published algorithm, by chunks as it has them, and of the convolution.
        """

    @abstractmethod
    def saved(self, at: "Setting", given_bytes: int) -> Iterator["Saved"]:
        """What one layer keeps for the backward pass, its input's copies among it."""
