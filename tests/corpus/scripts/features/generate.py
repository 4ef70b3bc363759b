"""Generation with transformers: eight new tokens after four, with and without an end token."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

eos = int(sys.argv[1]) if len(sys.argv) > 1 else None
config = GPT2Config(
    vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=eos
)
model = GPT2LMHeadModel(config).cuda().eval()
prompt = torch.randint(10, 90, (2, 4), device="cuda")
out = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
print("generated", tuple(out.shape))
