"""Steps of prime-rl's trainer: its model, loss head, sharding and optimizer, on tokens of our own.

Its `trainer/rl/train.py` imports environments and servers of reinforcement learning; what it does
with a batch is here as in its loop at 559b447: two micro-batches, clipped gradients, AdamW.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist

MICRO_BATCHES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a config.json")
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--lora", type=int, default=0, help="rank")
    parser.add_argument("--attention", default="flash_attention_3")
    parser.add_argument(
        "--offload", action="store_true", help="activations, instead of recomputing"
    )
    parser.add_argument("--sft", action="store_true", help="logits and cross entropy")
    args = parser.parse_args()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29555"}
    os.environ.update(alone | {"LOCAL_RANK": "0"} | os.environ)
    dist.init_process_group("nccl")
    torch.set_float32_matmul_precision("high")

    from prime_rl.configs.trainer import AdamWConfig, ModelConfig
    from prime_rl.trainer.model import forward, setup_model
    from prime_rl.trainer.models.layers.lora.base import set_lora_num_tokens
    from prime_rl.trainer.optim import setup_optimizer
    from prime_rl.trainer.parallel_dims import get_parallel_dims
    from prime_rl.utils.act_offloading import maybe_activation_offloading

    asked = {
        "name": args.model, "seq_len": args.sequence, "attn": args.attention, "ep": 1,
        "debug": {"random_init": True}, "compile": {},
        "ac_offloading" if args.offload else "ac": {},
    }  # fmt: skip
    if args.lora:
        asked["lora"] = {"rank": args.lora}
    if args.sft:
        asked["fused_lm_head_token_chunk_size"] = "disabled"
    config = ModelConfig(**asked)
    dims = get_parallel_dims(config)
    model = setup_model(config, dims)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer, _ = setup_optimizer(AdamWConfig(), list(model.named_parameters()), dims, model=model)
    for _ in range(2):
        for _ in range(MICRO_BATCHES):
            ids = torch.randint(0, 1000, (1, args.sequence)).to("cuda")
            places = torch.arange(args.sequence).unsqueeze(0).to("cuda")
            labels, heat = torch.roll(ids, -1, 1), torch.ones(1, args.sequence).to("cuda")
            count = torch.tensor([args.sequence], dtype=torch.int32).to("cuda")
            if args.lora:
                set_lora_num_tokens(count)
            offloading = maybe_activation_offloading(config.ac_offloading)
            with offloading if args.offload else nullcontext():
                out = forward(model, ids, places, labels=labels, temperature=heat, seq_lens=count)
            if args.sft:
                logits = out["logits"].flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, labels.flatten())
            else:
                loss = -out["logprobs"].mean()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()


main()
