"""transformers' Trainer: Llama in bfloat16, checkpointed, two micro-batches to a step."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2,
)  # fmt: skip
rows = torch.randint(0, 1000, (64, 64))
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=2,
        max_steps=20, bf16=True, gradient_checkpointing=True, logging_steps=1, save_steps=1,
        report_to="none",
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
)  # fmt: skip
trainer.train()
