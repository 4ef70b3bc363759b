"""Hooks on modules, tensors and gradients."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
seen = []
model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
model[1].register_full_backward_hook(lambda module, into, out: seen.append(out[0].shape))
model[1].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
model[1].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
for _ in range(2):
    y = model(torch.randn(16, 64, device="cuda"))
    y.retain_grad()
    y.square().mean().backward()
    assert y.grad.shape == (16, 32)
    optimizer.step()
    optimizer.zero_grad()
print("seen", len(seen))
