"""Train a Llama of any size from its configuration, with Hugging Face transformers' own model code.

Nothing is downloaded: weights are random, tokens too. Llama 3 8B is the default; on a GPU that is
not there it costs seconds and a gigabyte of this machine's memory.

    tally run examples/train_llama_hf.py --gpu H200
    tally run examples/train_llama_hf.py --layers 16 --width 2048 --hidden 8192 --gpu RTX-4090
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=14336, help="width of the MLP")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-checkpointing", action="store_true", help="keep all activations")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    config = LlamaConfig(
        hidden_size=args.width,
        intermediate_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        vocab_size=args.vocabulary,
        max_position_embeddings=args.context,
        attn_implementation="sdpa",
        use_cache=False,
    )
    with torch.device(args.device):
        model = LlamaForCausalLM(config).bfloat16()
    model.train()
    if not args.no_checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.device == "cuda")
    for step in range(1, args.steps + 1):
        tokens = torch.randint(args.vocabulary, (args.batch_size, args.context), device=args.device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
