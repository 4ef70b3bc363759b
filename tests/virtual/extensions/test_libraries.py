"""apex, xformers and deep_gemm where they are not installed."""

import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchtally
from torchtally.ledger import Ledger


def traced(step) -> Ledger:
    trace = torchtally.run(step, gpu="H100-SXM")
    ledger = torchtally.account(trace, step="all", roofline=torchtally.roofline("H100-SXM"))
    ledger.check()
    assert not ledger.coverage.uncounted
    assert not ledger.untimed
    return ledger


def flops(ledger: Ledger, name: str) -> list[int]:
    return [entry.cost.flops for entry in ledger.entries if entry.call.name == name]


def heads(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def test_fused_adam_updates_all_parameters_at_once():
    """64 x 64 weights and 64 of a bias: 4160 elements, three tensors of float32 kept of each."""

    def step() -> None:
        from apex.optimizers import FusedAdam

        model = nn.Linear(64, 64, device="cuda")
        optimizer = FusedAdam(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert sorted(optimizer.state[model.weight]) == ["exp_avg", "exp_avg_sq"]

    ledger = traced(step)
    (entry,) = {
        (entry.cost.flops, entry.cost.bytes_read, entry.cost.bytes_written)
        for entry in ledger.entries
        if entry.call.name == "apex.multi_tensor_adam"
    }
    assert entry == (15 * 4160, 4 * 4 * 4160, 3 * 4 * 4160)
    assert len(ledger.course.trace.step_ends) == 2


def test_fused_norms_are_torchs():
    def step() -> None:
        from apex.normalization import FusedLayerNorm, FusedRMSNorm
        from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction

        norms = nn.Sequential(FusedRMSNorm(64), FusedLayerNorm(64)).cuda()
        normal = norms(torch.ones(2, 64, device="cuda"))
        weight = torch.ones(64, device="cuda")
        FusedLayerNormAffineFunction.apply(normal, weight, weight, 64, 1e-5).sum().backward()

    ledger = traced(step)
    assert len(flops(ledger, "aten._fused_rms_norm")) == 1
    assert len(flops(ledger, "aten.native_layer_norm")) == 2


def test_memory_efficient_attention_is_flash_attention_in_half_precision():
    """4 heads of 256 queries and keys, 64 wide, twice: 2^19 pairs."""

    def step() -> None:
        from xformers.ops import LowerTriangularMask, memory_efficient_attention
        from xformers.ops.fmha import BlockDiagonalMask

        q = heads(2, 256, 4, 64)
        memory_efficient_attention(q, q, q, attn_bias=LowerTriangularMask()).backward(q)
        packed = heads(1, 512, 4, 64)
        mask = BlockDiagonalMask.from_seqlens([128, 384])
        memory_efficient_attention(packed, packed, packed, attn_bias=mask)
        single = q.float()
        memory_efficient_attention(single, single, single)
        with pytest.raises(NotImplementedError, match="no attention bias"):
            memory_efficient_attention(q, q, q, attn_bias=object())

    ledger = traced(step)
    pairs = 4 * (128**2 + 384**2)
    assert flops(ledger, "flash_attn.forward") == [4 * 2**19 * 64, 4 * pairs * 64]
    assert flops(ledger, "flash_attn.backward") == [10 * 2**19 * 64]
    assert flops(ledger, "aten._scaled_dot_product_efficient_attention") == [4 * 2**19 * 64]


def test_swiglu_packs_its_first_two_products():
    def step() -> None:
        from xformers.ops import SwiGLU

        SwiGLU(64, 128, bias=False).cuda()(torch.ones(8, 64, device="cuda"))

    products = flops(traced(step), "aten.mm")
    assert products == [2 * 8 * 64 * 256, 2 * 8 * 128 * 64]


def test_products_in_float8_by_deep_gemm():
    def step() -> None:
        import deep_gemm

        a, b = (
            torch.zeros(rows, 256, device="cuda", dtype=torch.float8_e4m3fn) for rows in (512, 128)
        )
        scales = torch.ones(512, 2, device="cuda"), torch.ones(1, 2, device="cuda")
        d = torch.empty(512, 128, device="cuda", dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt((a, scales[0]), (b, scales[1]), d)

    ledger = traced(step)
    (entry,) = (each for each in ledger.entries if each.call.name == "deep_gemm.fp8_gemm_nt")
    assert entry.cost.flops == 2 * 512 * 256 * 128
    assert entry.cost.bytes_read == 512 * 256 + 128 * 256 + 4 * (1024 + 2)
    assert entry.cost.bytes_written == 512 * 128 * 2


def test_a_name_that_a_stand_in_lacks_is_told_apart(gpu):
    with pytest.raises(ImportError, match="fused_dense"):
        from apex import fused_dense  # noqa: F401


def test_a_library_of_which_a_part_is_lacking_is_not_there_for_who_can_do_without():
    def step() -> None:
        try:
            import xformers
            from xformers.ops import no_such_kernel

            has_it = (xformers, no_such_kernel)
        except ModuleNotFoundError:
            has_it = None
        assert has_it is None
        assert "xformers" not in sys.modules

    torchtally.run(step, gpu="H100-SXM")


def test_a_part_that_is_lacking_later_is_not_installed():
    """Another file has the library already. Outside of a `try` the name is what is told."""

    def step() -> None:
        import apex.optimizers

        assert not hasattr(apex.optimizers, "FusedNovoGrad")
        missing = None
        try:
            from apex.optimizers import FusedNovoGrad
        except ModuleNotFoundError as error:
            missing = error.name
        assert missing == "apex.optimizers.FusedNovoGrad"
        with pytest.raises(ImportError, match="cannot import name 'FusedNovoGrad'") as refused:
            from apex.optimizers import FusedNovoGrad  # noqa: F401
        assert not isinstance(refused.value, ModuleNotFoundError)

    torchtally.run(step, gpu="H100-SXM")


@pytest.mark.parametrize(
    ("second", "is_there"),
    [
        ("from xformers.ops import no_such_kernel", False),
        ("def late():\n    from xformers.ops import no_such_kernel", True),
        ("from xformers.ops import SwiGLU", True),
    ],
)
def test_a_package_that_needs_more_than_a_stand_in_has_is_told_as_one(
    second: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file looks whether the library is there, another relies on it."""
    package = tmp_path / "of_kernels"
    (package / "layers").mkdir(parents=True)
    look = "try:\n    import xformers\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n"
    second = textwrap.indent(second, "    ")
    (package / "__init__.py").write_text(look)
    (package / "layers/__init__.py").write_text("")
    (package / "layers/fused.py").write_text(f"{look}if HAVE:\n{second}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def step() -> None:
        import of_kernels
        import of_kernels.layers.fused

        assert of_kernels.HAVE is of_kernels.layers.fused.HAVE is is_there

    torchtally.run(step, gpu="H100-SXM")
    for name in [name for name in sys.modules if name.startswith("of_kernels")]:
        del sys.modules[name]


def test_who_looks_first_is_told_of_a_library_that_answers_wholly():
    """Here more of apex is imported than there is, and of deep_gemm what there is."""

    def step() -> None:
        assert find_spec("apex") is None
        assert find_spec("deep_gemm") is not None

    torchtally.run(step, gpu="H100-SXM")
