"""What chunks and recomputation save, in bytes, as the tracer sees it on a simulated GPU."""

from functools import partial

import pytest
import torch

from torchtally import run
from torchtally.memory import replay
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.transformer import Transformer

B, S, V = 8, 256, 8192
CONFIG = TransformerConfig(
    layers=4, width=128, heads=4, kv_heads=2, ffn=256, vocabulary=V, context=S
)  # fmt: skip
LOGITS_BYTES = B * S * V * 4


def step(chunk_tokens: int | None, recompute: str) -> None:
    with torch.device("cuda"):
        model = Transformer(CONFIG, recompute=recompute)
        ids = torch.zeros(B, S, dtype=torch.int64)
    model.loss(ids, ids, chunk_tokens=chunk_tokens).backward()


def peak_bytes(chunk_tokens: int | None, recompute: str = "none") -> int:
    return replay(run(partial(step, chunk_tokens, recompute), gpu="H100-SXM")).peak_bytes


@pytest.mark.thorough
def test_chunks_hold_no_whole_logits() -> None:
    """Whole, log-probabilities, their gradient and that of the logits are there at once."""
    whole, parts = peak_bytes(None), peak_bytes(B * S // 32)
    assert 2 * LOGITS_BYTES < whole - parts < 3 * LOGITS_BYTES


def test_recomputed_blocks_keep_their_input_alone() -> None:
    """Of four blocks three are not there when the fourth is recomputed. Each keeps at least
    its norms' results, its query, attention's result and three of the feed-forward, twice as wide.
    """
    kept_bytes = B * S * 4 * (4 * CONFIG.width + 3 * CONFIG.ffn)
    assert peak_bytes(64) - peak_bytes(64, "full") > 3 * kept_bytes
