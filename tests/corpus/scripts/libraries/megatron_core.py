"""Megatron-Core: a Llama of Transformer Engine's layers, its DDP and distributed optimizer."""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

TENSOR_PARALLEL = int(sys.argv[1])
VOCABULARY, LENGTH, BATCH = 128, 64, 2

for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"),
                    ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")):  # fmt: skip
    os.environ.setdefault(name, value)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=TENSOR_PARALLEL)
model_parallel_cuda_manual_seed(1)

config = TransformerConfig(
    num_layers=2, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4,
    normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
    add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, bf16=True,
    params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
    gradient_accumulation_fusion=True, tensor_model_parallel_size=TENSOR_PARALLEL,
    sequence_parallel=TENSOR_PARALLEL > 1,
)  # fmt: skip
model = GPTModel(
    config,
    get_gpt_layer_with_transformer_engine_spec(),
    VOCABULARY,
    LENGTH,
    position_embedding_type="rope",
)
model = model.cuda().bfloat16()
options = DistributedDataParallelConfig(
    grad_reduce_in_fp32=True, overlap_grad_reduce=True, use_distributed_optimizer=True
)
model = DistributedDataParallel(config, options, model)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True), [model]
)
config.finalize_model_grads_func = finalize_model_grads
config.grad_scale_func = optimizer.scale_loss
config.no_sync_func = model.no_sync


def forward_step(batches, model):
    tokens = next(batches)
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, LENGTH)
    losses = model(tokens, positions, None, labels=tokens)
    return losses, lambda losses: (losses.float().mean(), {})


for _ in range(2):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter([torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")] * 2),
        model=[model],
        num_microbatches=2,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    optimizer.step()
