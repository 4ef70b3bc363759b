"""The deep linear model is the one whose bytes and FLOPs are counted in closed form."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.plan.deep_linear import deep_linear_parameters, deep_linear_weights
from torchtally.train.models.cruncher import Cruncher


def test_its_state_dict() -> None:
    """D = 4, L = 2: two matrices of 16 and a row of 4."""
    state = {name: tensor.numel() for name, tensor in Cruncher(4, 2).state_dict().items()}
    assert state == {"layers.0.weight": 16, "layers.1.weight": 16, "final.weight": 4}


@given(dim=st.integers(1, 20), layers=st.integers(0, 4), batch=st.integers(1, 5))
def test_parameters_and_shapes(dim: int, layers: int, batch: int) -> None:
    model = Cruncher(dim, layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == deep_linear_parameters(dim, layers).value
    assert parameters == sum(
        deep_linear_weight.elements for deep_linear_weight in deep_linear_weights(dim, layers)
    )
    assert model(torch.randn(batch, dim)).shape == (batch,)


def test_it_is_linear_and_computes_the_product_of_its_matrices() -> None:
    model = Cruncher(6, 3).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    state = model.state_dict()
    product = x
    for at in range(3):
        product = product @ state[f"layers.{at}.weight"].T
    assert torch.allclose(model(x), (product @ state["final.weight"].T)[:, 0])
