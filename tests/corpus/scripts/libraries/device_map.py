"""A saved model loaded by device_map, generated with, evaluated and fine-tuned."""

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("llama", device_map="auto", dtype=torch.bfloat16)
assert str(model.device) == "cuda:0", model.device
prompt = torch.randint(10, 90, (1, 4)).to(model.device)
print("generated", tuple(model.generate(prompt, max_new_tokens=4, do_sample=False).shape))
rows = torch.randint(0, 128, (64, 32))
data = [{"input_ids": row, "labels": row} for row in rows]
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, num_train_epochs=1, bf16=True,
        report_to="none", eval_strategy="steps", eval_steps=1,
    ),
    train_dataset=data,
    eval_dataset=data[:8],
)  # fmt: skip
trainer.train()
