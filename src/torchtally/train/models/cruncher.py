"""The deep linear model: small enough to check every byte and FLOP by hand.

Axes: `batch` rows, `width` features. The closed forms are in `plan/deep_linear.py`.
"""

from jaxtyping import Float
from torch import Tensor, nn

from torchtally.train.models.linear import Linear


class Cruncher(nn.Module):
    """`num_layers` square matrices and a last one to a single number, nothing in between.

    Parameters: dim * dim * num_layers + dim, as `layers.0.weight` (dim, dim), `layers.1.weight`,
    ..., `final.weight` (1, dim). 0 layers are allowed.
    """

    def __init__(self, dim: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(dim, dim) for _ in range(num_layers))
        self.final = Linear(dim, 1)

    def forward(self, x: Float[Tensor, "batch width"]) -> Float[Tensor, " batch"]:
        for layer in self.layers:
            x = layer(x)
        last: Tensor = self.final(x)
        return last.squeeze(-1)
