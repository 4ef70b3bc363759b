"""Generate text with a Llama of 8 billion parameters, by transformers and by a plain loop.

On a simulated GPU: tally run examples/generate.py --gpu H100-SXM
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA_3_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "rope_theta": 500000.0, "max_position_embeddings": 8192,
}  # fmt: skip
"""As the model's config.json; weights are random, since only their shapes matter."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens given")
    parser.add_argument("--new", type=int, default=64, help="tokens generated")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--static", action="store_true", help="static cache, compiled decoding")
    parser.add_argument("--loop", action="store_true", help="a loop of one's own")
    return parser.parse_args()


def by_loop(model: LlamaForCausalLM, ids: torch.Tensor, new: int) -> None:
    """Greedy: the likeliest token, one after the other."""
    cache = None
    for _ in range(new):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)


@torch.inference_mode()
def main() -> None:
    args = parse()
    config = LlamaConfig(**LLAMA_3_8B | {"num_hidden_layers": args.layers})
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
        prompt = torch.randint(0, config.vocab_size, (args.batch_size, args.prompt))
    if args.loop:
        by_loop(model, prompt, args.new)
        return
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=args.new,
        do_sample=False,
        cache_implementation="static" if args.static else None,
        pad_token_id=0,
    )
    print(f"{out.shape[1]} tokens")


if __name__ == "__main__":
    main()
