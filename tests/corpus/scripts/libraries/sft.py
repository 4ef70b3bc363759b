"""TRL's SFT of a saved model, with LoRA and checkpointing."""

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

rows = [{"text": " ".join(f"word{(n + k) % 100}" for k in range(32))} for n in range(64)]
trainer = SFTTrainer(
    model="llama",
    train_dataset=Dataset.from_list(rows),
    peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"]),
    args=SFTConfig(
        output_dir="out", per_device_train_batch_size=4, max_steps=4, report_to="none",
        gradient_checkpointing=True, bf16=torch.cuda.is_available(),
    ),
)  # fmt: skip
trainer.train()
