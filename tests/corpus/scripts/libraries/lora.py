"""LoRA by peft, in a loop of one's own."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4,
)  # fmt: skip
model = LlamaForCausalLM(config)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"])).to(device)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(2):
    ids = torch.randint(0, 128, (4, 32), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
