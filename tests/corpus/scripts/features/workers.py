"""A DataLoader with workers that stay, and pinned batches."""

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        assert torch.utils.data.get_worker_info() is not None
        return torch.full((64,), float(index)), index % 32


model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(
    Rows(), batch_size=16, num_workers=2, persistent_workers=True, pin_memory=True, shuffle=True
)
for _ in range(2):
    for x, y in loader:
        logits = model(x.cuda(non_blocking=True))
        torch.nn.functional.cross_entropy(logits, y.cuda(non_blocking=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
