"""Hybrids by hand: sums of recurrences, and one line each of `tally plan` with a checked answer."""

import json
from pathlib import Path

import pytest

from tests.plan.config_cases import CASES
from torchtally.chips import chip
from torchtally.cli import main
from torchtally.plan.activations.feed_forward import feed_forward_saved
from torchtally.plan.activations.kept import layer_saved
from torchtally.plan.activations.setting import Implementation, setting_of
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.model import FeedForward, Model
from torchtally.plan.flops import recurrence_flops, token_flops
from torchtally.plan.inference.forward import state_s
from torchtally.plan.kv_cache import Cache, CacheKind, kv_cache_bytes, recurrent_state_bytes
from torchtally.plan.mixers.convolution import ShortConvolution
from torchtally.plan.mixers.delta import GatedDelta
from torchtally.plan.mixers.lightning import Lightning
from torchtally.plan.mixers.mamba import Mamba
from torchtally.plan.mixers.mamba2 import Mamba2
from torchtally.plan.parallel.recurrence import scan_s
from torchtally.plan.parameters import parameters
from torchtally.plan.recipes import recipe
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.attention import Fused, shares_of
from torchtally.timing.roofline.rates import peak_of

MAMBA_2 = Mamba2(heads=8, head_dim=12, groups=2, state_size=10, kernel=4, chunk=16)
DELTA = GatedDelta(
    key_heads=2, value_heads=4, key_dim=10, value_dim=14, kernel=4,
    projections=(("q", "k", "v", "z"), ("b", "a")),
)  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
    "full_attention_interval": 4, "max_position_embeddings": 262144,
}  # fmt: skip
"""Of Qwen/Qwen3-Next-80B-A3B-Instruct: 80B parameters, 3B active."""
MAMBA_2_7B = {
    "model_type": "mamba2", "vocab_size": 50288, "hidden_size": 2560, "num_hidden_layers": 64,
    "num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1, "conv_kernel": 4,
    "chunk_size": 256, "tie_word_embeddings": True,
}  # fmt: skip
"""Of state-spaces/mamba2-2.7b: 2.7B parameters (arXiv 2405.21060, table 9)."""
RWKV_169M = {
    "model_type": "rwkv", "vocab_size": 50277, "hidden_size": 768, "num_hidden_layers": 12,
    "attention_hidden_size": 768, "intermediate_size": 3072, "context_length": 1024,
    "rescale_every": 6, "tie_word_embeddings": False,
}  # fmt: skip
"""Of RWKV/rwkv-4-169m-pile."""


def read(values: dict[str, object]) -> Model:
    return from_values(values, name="hybrid", place="config.json")


def case(name: str) -> Model:
    model_type, keys = CASES[name]
    return read(keys | {"model_type": model_type})


def test_flops_of_a_token_in_each_scan() -> None:
    # Convolution of 96 + 2 * 20 channels; scores by 2 groups; 8 heads: values, and the state twice.
    conv, scores = 2 * 136 * 4, 2 * 2 * 16 * 10
    assert MAMBA_2.scan_flops(64).value == conv + scores + 8 * (2 * 16 * 12 + 4 * 12 * 10)
    # A sequence shorter than a chunk is one chunk by itself.
    assert MAMBA_2.scan_flops(4).value == conv + 2 * 2 * 4 * 10 + 8 * (2 * 4 * 12 + 4 * 12 * 10)
    mamba = Mamba(inner=96, state_size=10, rank=5, kernel=4)
    assert mamba.scan_flops(64).value == 2 * 96 * 4 + 2 * 96 * 10
    # 96 channels; 4 heads, chunks of 64: 3 products of keys, 2 of values, 3 with the state.
    within, across = 2 * 64 * (3 * 10 + 2 * 14), 6 * 10 * 14
    assert DELTA.scan_flops(256).value == 2 * 96 * 4 + 4 * (within + across)
    lightning = Lightning(heads=6, head_dim=10, block=16)
    assert lightning.scan_flops(64).value == 6 * (4 * 16 * 10 + 4 * 10 * 10)
    assert ShortConvolution(width=48, kernel=3).scan_flops(64).value == 2 * 48 * 3


def test_scans_are_part_of_the_forward_pass_in_every_layer() -> None:
    model = case("mamba2")
    scan = 2 * 136 * 4 + 2 * 2 * 16 * 10 + 8 * (2 * 16 * 12 + 4 * 12 * 10)
    assert recurrence_flops(model, 64).value == 2 * scan
    flops = token_flops(model, 64)
    matrices = 2 * 2 * (240 * 48 + 48 * 96) + 2 * 101 * 48
    assert flops.forward.value == matrices + 2 * scan
    assert recurrence_flops(case("llama"), 64).value == 0


def test_a_state_is_as_large_however_long_the_sequence() -> None:
    model = case("mamba2")
    # 2 layers, 3 sequences: 8 * 12 * 10 numbers in float32, and 4 or 3 inputs of 136 channels.
    paged, dynamic = Cache(), Cache(CacheKind.DYNAMIC)
    assert kv_cache_bytes(model, 9, 3).value == 3 * 2 * (960 * 4 + 136 * 3 * 2)
    assert kv_cache_bytes(model, 10**6, 3, dynamic).value == 3 * 2 * (960 * 4 + 136 * 4 * 2)
    assert recurrent_state_bytes(model.kinds[0], 3, paged, 2).value == 3 * (960 * 4 + 136 * 3 * 2)
    # Sums, maximum, and the last token of both halves of a layer: no convolution.
    rwkv = case("rwkv, narrow and tied")
    for kind in CacheKind:
        assert kv_cache_bytes(rwkv, 9, 3, Cache(kind)).value == 3 * 3 * (3 * 36 * 4 + 2 * 48 * 2)
    # Lightning attention's is in 16 bits, and has no convolution.
    minimax = next(kind for kind in case("minimax").kinds if kind.recurrence is not None)
    assert recurrent_state_bytes(minimax).value == 6 * 10 * 10 * 2


def test_both_mixers_of_falcon_h1_keep_what_is_theirs() -> None:
    state, keys = 960 * 4 + 136 * 3 * 2, 3 * 2 * 10 * 2 * 7
    assert kv_cache_bytes(case("falcon_h1"), 7).value == 2 * (state + keys)


def test_seconds_of_a_scan() -> None:
    h100 = chip("H100-SXM")
    share, peak = shares_of(Fused.FLASH, "bfloat16", h100), peak_of("bfloat16", h100).flop_per_s
    flops = MAMBA_2.scan_flops(64).value * 100 / 2
    moved = (2 * 136 + 2 * 96 + 8) * 2 * 100 / 2
    slow, quick = 1e3, 1e15
    there = scan_s(MAMBA_2, 100, 64, 2, h100, "bfloat16", 2, quick)
    assert there.value == flops / (share.forward * peak) + 6 * KERNEL_S
    back = scan_s(MAMBA_2, 100, 64, 2, h100, "bfloat16", 2, slow, is_backward=True)
    assert back.value == 3 * moved / slow + 12 * KERNEL_S
    assert state_s(1000, 100, 2).value == 2 * 1000 / 100 + 2 * KERNEL_S


def test_what_kernels_keep_of_a_layer() -> None:
    model = case("mamba2")
    at = setting_of(model, 2, 32, recipe("bf16"), implementation=Implementation.FUSED)
    # For each of 64 tokens in 16 bits: the norm's input, in, projected, the scan's result.
    kept = sum(saved.bytes.value for saved in layer_saved(at, model.kinds[0]))
    assert kept == 64 * 2 * (48 + 48 + 240 + 96)


def test_what_transformers_keeps_of_mamba_2() -> None:
    model = case("mamba2")
    at = setting_of(model, 1, 32, recipe("bf16"))
    kept = {saved.name: saved.bytes.value for saved in layer_saved(at, model.kinds[0])}
    assert kept["convolved"] == (32 + 3) * 136 * 2
    assert kept["decays, scores, and both"] == 3 * 32 * 8 * 16 * 4
    assert kept["B and C of each head"] == 5 * 32 * 8 * 10 * 4
    assert kept["states of chunks"] == (2 * 2 + 1) * 96 * 10 * 4
    assert kept["decays between chunks"] == 8 * 3**2 * 4


def test_parameters_are_the_published_ones() -> None:
    next_size, mamba_size = parameters(read(QWEN3_NEXT)), parameters(read(MAMBA_2_7B))
    assert round(next_size.total.value / 1e9) == 80
    assert round(next_size.active.value / 1e9, 1) == 3.9  # 3.3 B without embedding and head
    assert round(mamba_size.total.value / 1e9, 1) == 2.7


@pytest.mark.parametrize(
    ("layers", "width", "billions"),
    [(12, 768, 0.169), (24, 1024, 0.43), (24, 2048, 1.515), (32, 2560, 2.985), (32, 4096, 7.393),
     (40, 5120, 14.149)],
)  # fmt: skip
def test_rwkv_has_the_papers_parameters_and_flops(layers: int, width: int, billions: float) -> None:
    """Peng et al. 2023, arXiv 2305.13048: 2 V D + 13 D^2 L + D (11 L + 4) parameters, and twice
    those of linear layers but for the embedding, V D + 13 D^2 L, for a token forward.
    """
    model = read(RWKV_169M | {
        "hidden_size": width, "num_hidden_layers": layers, "attention_hidden_size": None,
        "intermediate_size": None,
    })  # fmt: skip
    linear = 50277 * width + 13 * width**2 * layers
    count = parameters(model).total.value
    assert count == linear + 50277 * width + width * (11 * layers + 4)
    assert round(count / 1e9, 3) == pytest.approx(billions, abs=1e-3)
    assert token_flops(model, 1024).forward.value == 2 * linear


def test_memory_of_qwen3_next_at_128k() -> None:
    """12 layers keep keys and values of 2 heads of 256, 36 a state of 32 heads and 3 inputs."""
    keys = 12 * 2 * 2 * 256 * 2 * 131072
    state = 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
    assert kv_cache_bytes(read(QWEN3_NEXT), 131072).value == keys + state


def written(folder: Path, values: dict[str, object]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def asked(folder: Path, values: dict[str, object], *words: str) -> dict[str, float]:
    """The figures of `tally plan config.json`, by name."""
    out = folder / "answer.json"
    assert main(["plan", written(folder, values), *words, "--json", str(out)]) == 0
    return {figure["name"]: figure["value"] for figure in json.loads(out.read_text())["figures"]}


def test_days_of_mamba_2_in_one_line(tmp_path: Path) -> None:
    chips = ("--gpus", "64xH100-SXM", "--mfu", "40%")
    figures = asked(tmp_path, MAMBA_2_7B, "--tokens", "300B", "--sequence", "2048", *chips)
    # In, out and head; convolution, scores of the one group, 80 heads' values and states.
    matrices = 64 * 2 * (10576 * 2560 + 2560 * 5120) + 2 * 50288 * 2560
    scan = 2 * 5376 * 4 + 2 * 256 * 128 + 80 * (2 * 256 * 64 + 4 * 64 * 128)
    seconds = 3 * (matrices + 64 * scan) * 300e9 / (64 * 0.4 * 989.4e12)
    assert figures["training time"] == pytest.approx(seconds, rel=1e-3)


def test_memory_of_mamba_2_in_one_line(tmp_path: Path) -> None:
    figures = asked(
        tmp_path, MAMBA_2_7B, "--gpus", "H100-SXM", "--sequence", "2048", "--micro-batch", "1",
        "--kernels", "fused",
    )  # fmt: skip
    states = 16 * parameters(read(MAMBA_2_7B)).total.value
    # Of each layer and token in 16 bits: norm's input, in, projected, the scan's result.
    layers = 64 * 2048 * 2 * (2560 + 2560 + 10576 + 5120)
    assert states + layers < figures["memory"] < 1.1 * (states + layers) + 2**30


def test_inference_of_qwen3_next_in_one_line(tmp_path: Path) -> None:
    figures = asked(tmp_path, QWEN3_NEXT, "--inference", "--sequence", "131072")
    keys, token = 12 * 2 * 2 * 256 * 2 * 131072, 12 * 2 * 2 * 256 * 2
    state = 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
    assert figures["KV cache"] == keys + state
    assert figures["KV cache of one token"] == token


def test_inference_of_rwkv_in_one_line(tmp_path: Path) -> None:
    figures = asked(tmp_path, RWKV_169M, "--inference", "--sequence", "131072")
    assert figures["KV cache"] == 12 * (3 * 768 * 4 + 2 * 768 * 2)
    assert figures["KV cache of one token"] == 0


def mixer_bytes(name: str, tokens: int, chosen: str = "bf16", *, is_fused: bool = False) -> float:
    """What the recurrence of a case keeps of one sequence."""
    model = case(name)
    how = Implementation.FUSED if is_fused else Implementation.EAGER
    at = setting_of(model, 1, tokens, recipe(chosen), implementation=how)
    (mixer, *_) = (kind.recurrence for kind in model.kinds if kind.recurrence is not None)
    return float(sum(saved.bytes.value for saved in mixer.saved(at, at.inner_bytes)))


def test_all_that_mamba_2_keeps() -> None:
    scan = 4 * (3 * 8 * 16 + 5 * 8 * 10 + 3 * 96 + 2 * 8)
    chunks = (2 * 2 + 1) * 960 * 4 + 8 * 3**2 * 4
    # Token by token: input, projected, steps; then float32: inputs twice, steps twice; the result.
    narrow = 2 * (48 + 240 + 2 * 8 + 96) + 4 * (2 * 96 + 2 * 8) + 4 * (5 * 96 + 2)
    assert mixer_bytes("mamba2", 32) == 32 * (narrow + scan) + 35 * 136 * 2 + chunks
    wide = 4 * (48 + 240 + 2 * 8 + 96) + 4 * (96 + 136 + 8) + 4 * (4 * 96 + 2)
    assert mixer_bytes("mamba2", 32, "fp32") == 32 * (wide + scan) + 35 * 136 * 4 + chunks


def test_all_that_mamba_keeps() -> None:
    narrow = 2 * (48 + 2 * 96 + 25 + 96 + 2 * 96 + 960 + 96 + 96 + 96)
    kept = 32 * (narrow + 4 * (3 * 960 + 96 + 96)) + 35 * 96 * 2
    assert mixer_bytes("mamba", 32) == kept
    fused = 2049 * 2 * (48 + 2 * 96 + 25 + 96) + 2 * 2 * 960 * 4
    assert mixer_bytes("mamba", 2049, is_fused=True) == fused


def test_all_that_the_delta_rule_keeps() -> None:
    scores, norm = 5 * 4 * 64, 3 * 56 + 4
    narrow = 2 * (48 + 96 + 4 + 2 * 56 + 56)
    each = narrow + 4 * (8 * 4 + 8 * 40 + 3 * 56 + scores + norm)
    states = 2 * 10 * 56 * 4
    assert mixer_bytes("qwen3_5_text", 128) == 128 * each + 131 * 96 * 2 + states
    wide = 4 * (48 + 96 + 4 + 2 * 56 + 56) + 4 * (8 * 4 + 12 * 40 + 3 * 56 + scores + norm)
    assert mixer_bytes("qwen3_5_text", 128, "fp32") == 128 * wide + 131 * 96 * 4 + states
    fused = 2 * (48 + 96 + 96 + 4 + 4 * 64 + 2 * 56 + 56) + 4 * 4
    assert mixer_bytes("qwen3_5_text", 128, is_fused=True) == 128 * fused


def test_all_that_lightning_attention_and_a_convolution_keep() -> None:
    each = 2 * (48 + 3 * 60 + 6 * 60 + 6 * 16 + 60 + 2 * 60 + 60) + 4 * 60
    assert mixer_bytes("minimax", 32) == 32 * each + 2 * 60 * 10 * 2
    fused = 32 * 2 * (48 + 3 * 60 + 3 * 60 + 60 + 2 * 60 + 60)
    assert mixer_bytes("minimax", 32, is_fused=True) == fused
    each = 2 * (48 + 3 * 48 + 48 + 48)
    assert mixer_bytes("lfm2", 32) == 32 * each + 34 * 48 * 2


def test_all_that_time_mixing_keeps() -> None:
    name = "rwkv, narrow and tied"
    # Input and the token before, three mixes; values, receptance, mean, output's input; the loop's
    # eight numbers of a channel, and four more for each token but the last.
    narrow = 2 * (2 * 48 + 3 * 48 + 4 * 36) + 4 * 8 * 36
    assert mixer_bytes(name, 32) == 32 * narrow + 31 * 4 * 4 * 36 + 2 * (36 + 3 * 48)
    wide = 4 * (2 * 48 + 3 * 48 + 5 * 36 + 8 * 36)
    assert mixer_bytes(name, 32, "fp32") == 32 * wide + 31 * 4 * 3 * 36 + 4 * (36 + 3 * 48)
    fused = 2 * (2 * 48 + 3 * 48 + 5 * 36)
    assert mixer_bytes(name, 32, is_fused=True) == 32 * fused + 4 * 36 + 2 * 3 * 48


def test_all_that_channel_mixing_keeps() -> None:
    """A square is made in float32 under autocast, of a copy of what relu made."""
    model = case("rwkv, narrow and tied")
    block = model.kinds[0].feed_forward
    assert isinstance(block, FeedForward)

    def kept(chosen: str, given_bytes: int) -> float:
        at = setting_of(model, 1, 32, recipe(chosen))
        return sum(saved.bytes.value for saved in feed_forward_saved(at, block, given_bytes))

    # Input and the token before, two mixes, receptance and result; relu's result and its square.
    assert kept("bf16", 2) == 32 * 2 * (6 * 48 + 2 * 56) + 2 * 2 * 48
    mixed = 4 * 2 * 48 + 2 * 4 * 48 + (2 + 4 + 2) * 56
    assert kept("amp", 4) == 32 * mixed + 4 * 2 * 48
