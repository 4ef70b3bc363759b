"""transformer_engine.pytorch.router, which trainers import; its kernels are not known here: to whom
they send tokens is a choice that only `topk` of torch's is known to make.
"""

from typing import Any, NoReturn


def fused_topk_with_score_function(*arguments: Any, **options: Any) -> NoReturn:
    raise NotImplementedError(
        "tally does not know Transformer Engine's fused router (Megatron's moe_router_fusion)"
    )


fused_compute_score_for_moe_aux_loss = fused_moe_aux_loss = fused_topk_with_score_function
