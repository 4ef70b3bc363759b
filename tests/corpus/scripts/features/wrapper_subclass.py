"""A weight in a tensor subclass that wraps another, and dispatches itself."""

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device=values.device, requires_grad=False
        )

    def __init__(self, values, scale):
        self.values_of, self.scale = values, scale

    def __tensor_flatten__(self):
        return ["values_of"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner, scale, size, stride):
        return Scaled(inner["values_of"], scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            inner = func(args[0].values_of, *args[1:], **(kwargs or {}))
            return return_and_correct_aliasing(func, args, kwargs, cls(inner, args[0].scale))
        plain = [a.values_of * a.scale if isinstance(a, Scaled) else a for a in args]
        return func(*plain, **(kwargs or {}))


frozen = Scaled(torch.randn(64, 64, device="cuda"), 0.5)
model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    hidden = torch.mm(torch.randn(16, 64, device="cuda"), frozen)
    model(hidden).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
