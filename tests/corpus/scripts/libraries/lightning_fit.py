"""Lightning's Trainer: fit with validation, mixed precision, accumulation and checkpoints."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = TensorDataset(torch.randn(64, 64), torch.randint(0, 10, (64,)))
trainer = lightning.Trainer(
    accelerator="auto", devices=1, max_epochs=2, precision="bf16-mixed",
    accumulate_grad_batches=2, enable_progress_bar=False, logger=False,
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(data, batch_size=16), DataLoader(data, batch_size=32))
