"""timm: a ConvNeXt with its optimizer, augmentation by mixing, and an average of the weights."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model("convnext_atto", num_classes=10).to(device)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=10)
mix = Mixup(mixup_alpha=0.8, num_classes=10, prob=0.0)
for step in range(2):
    images, labels = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    images, targets = mix(images.to(device), labels.to(device))
    loss = SoftTargetCrossEntropy()(model(images), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step(step)
