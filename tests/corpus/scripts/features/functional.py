"""torch.func: gradients of a function of the parameters, one for each sample."""

import torch
from torch.func import functional_call, grad, vmap

model = torch.nn.Linear(64, 32, bias=False).cuda()
parameters = dict(model.named_parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss(parameters, x):
    return functional_call(model, parameters, (x[None],)).square().mean()


for _ in range(2):
    x = torch.randn(16, 64, device="cuda")
    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    assert each["weight"].shape == (16, 32, 64)
    model.weight.grad = each["weight"].mean(0)
    optimizer.step()
