"""TRL's DPO of a saved model."""

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer


def words(n, number):
    return " ".join(f"word{(n + k) % 100}" for k in range(number))


rows = [
    {"prompt": words(n, 8), "chosen": words(n + 1, 24), "rejected": words(n + 2, 24)}
    for n in range(64)
]
trainer = DPOTrainer(
    model="llama",
    train_dataset=Dataset.from_list(rows),
    args=DPOConfig(
        output_dir="out", per_device_train_batch_size=4, max_steps=4, report_to="none",
        gradient_checkpointing=False, bf16=torch.cuda.is_available(),
    ),
)  # fmt: skip
trainer.train()
