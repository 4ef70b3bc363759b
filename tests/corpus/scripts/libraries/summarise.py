"""An encoder and decoder of transformers: T5, in a loop of one's own, with Adafactor."""

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

device = "cuda" if torch.cuda.is_available() else "cpu"
config = T5Config(
    vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
    decoder_start_token_id=0,
)  # fmt: skip
model = T5ForConditionalGeneration(config).to(device)
optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False)
for _ in range(3):
    ids = torch.randint(2, 128, (4, 32), device=device)
    model(input_ids=ids, labels=ids[:, :16].contiguous()).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
