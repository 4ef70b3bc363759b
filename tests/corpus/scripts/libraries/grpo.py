"""TRL's GRPO of a saved model: answers are generated, rewarded and learnt from."""

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

rows = [{"prompt": " ".join(f"word{(n + k) % 100}" for k in range(8))} for n in range(64)]


def length(completions, **others):
    return [float(len(completion)) for completion in completions]


trainer = GRPOTrainer(
    model="llama",
    reward_funcs=length,
    train_dataset=Dataset.from_list(rows),
    args=GRPOConfig(
        output_dir="out", per_device_train_batch_size=4, num_generations=4, max_steps=4,
        max_completion_length=8, report_to="none", gradient_checkpointing=False,
        bf16=torch.cuda.is_available(),
    ),
)  # fmt: skip
trainer.train()
