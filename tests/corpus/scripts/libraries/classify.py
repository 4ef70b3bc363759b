"""torchvision: a ResNet-50 in channels_last, as its reference trains it."""

import torch
import torchvision

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torchvision.models.resnet50(num_classes=10).to(device, memory_format=torch.channels_last)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for _ in range(3):
    images = torch.randn(4, 3, 64, 64, device=device).to(memory_format=torch.channels_last)
    loss = criterion(model(images), torch.randint(0, 10, (4,), device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
