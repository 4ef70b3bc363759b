"""flash_attn where it is not installed: what it computes, what it keeps, and who is given it.

B = 2 sequences of S = 256 tokens, H = 4 heads of D = 64: a tensor is 2 * 256 * 4 * 64 * 2 bytes =
256 KiB, the pairs of queries and keys are 2 * 4 * 256 * 256 = 2^19, and a product of them is
2^19 * 64 * 2 = 2^26 FLOPs. Forward is two products, backward five.
"""

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchtally
from tests.cli.run_tally import tally_run
from torchtally.ledger import Ledger
from torchtally.virtual.extensions import absent
from torchtally.work.convention import Convention

KIB = 1024
PRODUCT = 2**26
TENSOR = 256 * KIB


def heads(*shape: int) -> Tensor:
    shape = shape or (2, 256, 4, 64)
    return torch.zeros(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def traced(step) -> Ledger:
    trace = torchtally.run(step, gpu="H100-SXM")
    ledger = torchtally.account(trace, step="all", roofline=torchtally.roofline("H100-SXM"))
    ledger.check()
    assert not ledger.coverage.uncounted
    return ledger


def flops(ledger: Ledger, name: str) -> list[int]:
    return [entry.cost.flops for entry in ledger.entries if entry.call.name == name]


def test_forward_is_two_products_and_backward_five():
    def step() -> None:
        from flash_attn import flash_attn_func

        flash_attn_func(heads(), heads(), heads(), causal=True).backward(heads())

    ledger = traced(step)
    assert flops(ledger, "flash_attn.forward") == [2 * PRODUCT]
    assert flops(ledger, "flash_attn.backward") == [5 * PRODUCT]
    by_half = torchtally.account(ledger.trace, step="all", convention=Convention.CAUSAL)
    assert flops(by_half, "flash_attn.forward") == [PRODUCT]
    assert any("flash-attn is not installed" in note.text for note in ledger.trace.notes)


def test_it_keeps_operands_result_rows_and_the_state_of_random_numbers(gpu):
    from flash_attn import flash_attn_func

    q, k, v = heads(), heads(), heads()
    before = torch.cuda.memory_allocated()
    out = flash_attn_func(q, k, v)
    rows = 2 * 4 * 256 * 4
    assert torch.cuda.memory_allocated() - before == TENSOR + rows + 512  # 16 bytes of state
    before, held = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    out.backward(torch.zeros_like(out))
    # The gradient of the result; three of operands; rows' sums; the fp32 gradient of the queries.
    assert torch.cuda.max_memory_allocated() - before == 4 * TENSOR + rows + 2 * TENSOR
    assert held <= torch.cuda.max_memory_allocated()


def test_a_window_counts_its_keys_and_grouped_heads_all_queries():
    def step() -> None:
        from flash_attn import flash_attn_func

        few = heads(2, 256, 2, 64)
        flash_attn_func(heads(), few, few, causal=True, window_size=(63, 0))

    assert flops(traced(step), "flash_attn.forward") == [2 * PRODUCT * 64 // 256]


def test_packed_sequences_attend_each_to_itself():
    def step() -> None:
        from flash_attn import flash_attn_varlen_func

        q = heads(512, 4, 64)
        ends = torch.tensor([0, 128, 512], device="cuda", dtype=torch.int32)
        flash_attn_varlen_func(q, q, q, ends, ends, 384, 384, causal=True).backward(q)

    ledger = traced(step)
    pairs = 4 * (128**2 + 384**2)
    assert flops(ledger, "flash_attn.forward") == [2 * pairs * 64 * 2]
    assert flops(ledger, "flash_attn.backward") == [5 * pairs * 64 * 2]


def test_the_gradient_of_packed_operands_is_one_tensor():
    def step() -> None:
        from flash_attn import flash_attn_kvpacked_func, flash_attn_qkvpacked_func

        qkv = heads(2, 256, 3, 4, 64)
        flash_attn_qkvpacked_func(qkv).backward(heads())
        assert qkv.grad is not None
        assert qkv.grad.shape == qkv.shape
        q, kv = heads(), heads(2, 256, 2, 4, 64)
        flash_attn_kvpacked_func(q, kv).backward(heads())
        assert q.grad is not None
        assert kv.grad is not None

    assert flops(traced(step), "flash_attn.backward") == [5 * PRODUCT] * 2


def test_version_3_runs_at_hoppers_rate_and_version_2_does_not():
    """Of 16 heads of 8192 tokens: 67 % and 35 % of 989 TFLOP/s, as published."""

    def step() -> None:
        from flash_attn import flash_attn_func as version_2
        from flash_attn_interface import flash_attn_func as version_3

        q = heads(4, 8192, 16, 128)
        version_2(q, q, q)
        version_3(q, q, q)

    ledger = traced(step)
    slow, fast = (
        ledger.times.kernel_s([entry for entry in ledger.entries if entry.call.name == name])
        for name in ("flash_attn.forward", "flash_attn_3.forward")
    )
    assert 1.7 < slow / fast < 2.1
    assert fast == pytest.approx(4 * 16 * 8192**2 * 128 * 4 / (0.67 * 989.4e12), rel=0.1)


def test_kernels_of_the_hub_are_known_by_their_names():
    def step() -> None:
        from kernels import get_kernel, has_kernel

        interface = get_kernel("varunneal/flash-attention-3").flash_attn_interface
        ends = torch.tensor([0, 512], device="cuda", dtype=torch.int32)
        q, k, v = (heads(512, 4, 64) for _ in range(3))
        interface.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=512, max_seqlen_k=512,
            causal=True, window_size=(127, 0), softmax_scale=0.1,
        ).backward(q)  # fmt: skip
        get_kernel("kernels-community/flash-attn2").flash_attn_func(heads(), heads(), heads())
        assert has_kernel("kernels-community/flash-attn3", version=1)
        assert not has_kernel("kernels-community/activation")
        with pytest.raises(ImportError, match="does not know the kernel 'kernels-community/act"):
            get_kernel("kernels-community/activation")

    ledger = traced(step)
    assert flops(ledger, "flash_attn_3.forward") == [2 * 4 * 512 * 128 * 64 * 2]
    assert flops(ledger, "flash_attn_3.backward") == [5 * 4 * 512 * 128 * 64 * 2]


def test_a_cache_is_read_whole_and_what_is_new_written():
    def step() -> None:
        from flash_attn import flash_attn_with_kvcache

        q, cache = heads(2, 1, 4, 64), heads(2, 256, 4, 64)
        with torch.no_grad():
            flash_attn_with_kvcache(q, cache, cache.clone(), q, q, cache_seqlens=127, causal=True)

    (entry,) = (each for each in traced(step).entries if each.call.name == "flash_attn.with_cache")
    one = 2 * 4 * 64 * 2
    assert entry.cost.flops == 2 * (2 * 4 * 128) * 64 * 2
    assert entry.cost.bytes_read == one + 2 * 128 * one + 2 * one
    assert entry.cost.bytes_written == one + 2 * 4 * 4 + 2 * one


def test_float32_is_refused_in_the_kernels_words(gpu):
    from flash_attn import flash_attn_func

    with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
        flash_attn_func(heads().float(), heads(), heads())


def test_a_query_normed_under_autocast_is_named_with_the_cast_it_needs(gpu):
    from flash_attn import flash_attn_func

    with torch.autocast("cuda", torch.bfloat16):
        query = torch.nn.functional.rms_norm(heads().float(), (64,))
        with pytest.raises(RuntimeError, match="autocast runs rms_norm in float32 from"):
            flash_attn_func(query, heads(), heads())


def test_fused_layers_beside_attention():
    def step() -> None:
        from flash_attn.bert_padding import pad_input, unpad_input
        from flash_attn.layers.rotary import apply_rotary_emb
        from flash_attn.losses.cross_entropy import CrossEntropyLoss
        from flash_attn.ops.triton.layer_norm import rms_norm_fn

        x = heads()
        angles = torch.zeros(256, 32, device="cuda", dtype=torch.bfloat16)
        apply_rotary_emb(x, angles, angles).backward(x)
        mask = torch.ones(2, 256, device="cuda", dtype=torch.int32)
        tokens, indices, *_ = unpad_input(x.flatten(2), mask)
        assert pad_input(tokens, indices, 2, 256).shape == (2, 256, 256)
        weight = heads(256)
        rms_norm_fn(x.flatten(2), weight, residual=x.flatten(2)).sum().backward()
        logits = heads(512, 1000)
        CrossEntropyLoss(inplace_backward=True)(logits, mask.flatten().long()).backward()

    ledger = traced(step)
    assert flops(ledger, "flash_attn.rotary") == [3 * 2 * 256 * 4 * 64] * 2
    assert flops(ledger, "flash_attn.cross_entropy") == [4 * 512 * 1000 + 2 * 512]
    assert flops(ledger, "flash_attn.cross_entropy_backward_") == [3 * 512 * 1000 + 512]


@pytest.mark.thorough
def test_compiled_code_has_the_same_operators():
    def step() -> None:
        from flash_attn import flash_attn_func

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flash_attn_func(q * 2, k, v, causal=True) + 1

        compiled = torch.compile(attend, fullgraph=True)
        compiled(heads(), heads(), heads()).sum().backward()

    ledger = traced(step)
    assert flops(ledger, "flash_attn.forward") == [2 * PRODUCT]
    assert flops(ledger, "flash_attn.backward") == [5 * PRODUCT]
    assert ledger.total.flops_recompute == 0
    assert ledger.total.flops_backward >= 5 * PRODUCT


# Who is given a stand-in.


def test_only_code_that_needs_it_finds_it(gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An installed library that tries another is told the truth; one that needs it is not."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "tries.py").write_text(
        "try:\n    import flash_attn\n    found = True\nexcept ImportError:\n    found = False\n"
    )
    (installed / "asks.py").write_text(
        "from importlib.util import find_spec\nfound = find_spec('flash_attn') is not None\n"
    )
    (installed / "needs.py").write_text("import flash_attn\nfound = True\n")
    (tmp_path / "own.py").write_text(
        "try:\n    import flash_attn\n    found = True\nexcept ImportError:\n    found = False\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(tmp_path))
    answers = {name: __import__(name).found for name in ("tries", "asks", "needs", "own")}
    for name in answers:
        del sys.modules[name]
    assert answers == {"tries": False, "asks": False, "needs": True, "own": True}
    assert importlib.metadata.version("flash-attn") == "2.8.3"


def test_the_rule_holds_where_clocks_of_the_script_watch_imports(tmp_path: Path) -> None:
    """A command replaces `__import__`: the importer is behind it."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "library.py").write_text(
        "try:\n    import flash_attn\n    found = True\nexcept ImportError:\n    found = False\n"
    )
    (tmp_path / "train.py").write_text(
        "import sys\nsys.path.insert(0, 'site-packages')\nimport library\n"
        "import torch, flash_attn\ntorch.ones(1, device='cuda')\n"
        "print(library.found, flash_attn.__version__)\n"
    )
    run = tally_run("train.py", cwd=tmp_path)
    assert (run.code, run.stdout) == (0, "False 2.8.3\n")


def test_the_hubs_package_loads_nothing_that_is_compiled_where_it_is_installed(
    gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "site-packages" / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def get_kernel(name):\n    raise OSError('libcudart')\n")
    monkeypatch.syspath_prepend(str(package.parent))
    try:
        from kernels import get_kernel

        assert sys.modules["kernels"].__file__ == str(package / "__init__.py")
        get_kernel("kernels-community/flash-attn3").flash_attn_func(heads(), heads(), heads())
    finally:
        sys.modules.pop("kernels", None)


def test_nothing_of_it_is_left_afterwards():
    before = list(sys.meta_path)
    with torchtally.virtual_gpu("H100-SXM"):
        import flash_attn.bert_padding

        assert flash_attn.bert_padding.__file__.startswith(str(absent.HOME))
    assert sys.meta_path == before
    assert not any(name.startswith("flash_attn") for name in sys.modules)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash-attn")


def test_transformers_attends_by_it_when_asked_to():
    def step() -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, vocab_size=128,
        )  # fmt: skip
        model = LlamaForCausalLM._from_config(
            config, attn_implementation="flash_attention_2", dtype=torch.bfloat16
        ).cuda()
        tokens = torch.randint(0, 128, (2, 32), device="cuda")
        model(tokens, labels=tokens).loss.backward()

    assert flops(traced(step), "flash_attn.forward") == [2 * (2 * 2 * 32 * 32) * 32 * 2]


def test_passes_by_themselves_are_what_a_split_sequence_runs():
    """ring-flash-attn calls forward and backward without autograd, on packed sequences, too."""

    def step() -> None:
        from flash_attn import flash_attn_interface as flash

        q, k, v = (heads().detach() for _ in "qkv")
        grads = [torch.empty_like(each) for each in (q, k, v)]
        options = (0.0, 0.125, True, -1, -1, 0.0, None)
        out, rows, _, state = flash._flash_attn_forward(q, k, v, *options, False)
        assert (rows.shape, state.dtype) == ((2, 4, 256), torch.int64)
        flash._flash_attn_backward(q, q, k, v, out, rows, *grads, *options, False)
        flat, offsets = q.flatten(0, 1), torch.tensor([0, 256, 512], device="cuda").int()
        packed = (offsets, offsets, 256, 256)
        out, rows, *_ = flash._flash_attn_varlen_forward(flat, flat, flat, *packed, *options[:3])
        grads = [torch.empty_like(flat) for _ in "qkv"]
        flash._flash_attn_varlen_backward(
            flat, flat, flat, flat, out, rows, *grads, *packed, *options, False
        )

    ledger = traced(step)
    assert flops(ledger, "flash_attn.forward") == [2 * PRODUCT] * 2
    assert flops(ledger, "flash_attn.backward") == [5 * PRODUCT] * 2


def test_a_script_that_has_it_finds_its_distribution():
    """transformers asks which distribution a module is of before it says that it is there."""
    found = []

    def step() -> None:
        import flash_attn_interface  # noqa: F401

        found.extend(importlib.metadata.packages_distributions()["flash_attn_interface"])
        found.extend(each.metadata["Name"] for each in importlib.metadata.distributions())

    torchtally.run(step, gpu="H100-SXM")
    assert found[0] == "flash-attn-3"
    assert "flash-attn-3" in found[1:]
    assert "flash-attn-3" not in {
        each.metadata["Name"] for each in importlib.metadata.distributions()
    }
