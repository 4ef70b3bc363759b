"""transformers' Trainer where bitsandbytes is installed, and not used."""

import bitsandbytes
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

print("installed", bitsandbytes.__version__)
config = BertConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_labels=3,
)  # fmt: skip
rows = torch.randint(0, 128, (64, 32))
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, max_steps=4, report_to="none"
    ),
    train_dataset=[{"input_ids": row, "labels": n % 3} for n, row in enumerate(rows)],
)
trainer.train()
