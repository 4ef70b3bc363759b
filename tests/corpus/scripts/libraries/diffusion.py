"""A denoising UNet of diffusers, by its training tutorial."""

import torch
from diffusers import DDPMScheduler, UNet2DModel

device = "cuda" if torch.cuda.is_available() else "cpu"
model = UNet2DModel(
    sample_size=32, in_channels=3, out_channels=3, layers_per_block=1,
    block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
).to(device)  # fmt: skip
schedule = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    images = torch.randn(4, 3, 32, 32, device=device)
    noise = torch.randn_like(images)
    times = torch.randint(0, 1000, (4,), device=device)
    noisy = schedule.add_noise(images, noise, times)
    loss = torch.nn.functional.mse_loss(model(noisy, times, return_dict=False)[0], noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
