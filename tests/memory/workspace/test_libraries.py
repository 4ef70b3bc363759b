"""The workspaces that cuBLAS and cuBLASLt keep: how large, how many, and when."""

from collections import Counter

import pytest
import torch
from torch.nn import functional as F

import torchtally
from tests.memory.workspace.recorded import rows
from tests.traces import traced
from torchtally.chips import chip, known_chips
from torchtally.memory.workspace import (
    KINDS,
    adds_bias,
    blas_lt_workspace,
    blas_workspace,
    context_bytes,
    uses_blas,
)
from torchtally.torch_private import releases
from torchtally.trace import Role, Trace

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("V100", 8519680),
        ("T4", 8519680),
        ("A100", 8519680),  # ":4096:2:16:8": two of 4 MiB and eight of 16 KiB
        ("L4", 8519680),
        ("H100", 33554432),  # ":4096:8": 32 MiB
        ("B200", 33554432),
        ("RTX-5090", 33554432),
    ],
)
def test_the_default_depends_on_the_generation(name: str, size: int) -> None:
    assert blas_workspace(chip(name), {}).bytes == size
    assert 2 * 4096 * 1024 + 8 * 16 * 1024 == 8519680


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (":4096:8", 32 * MIB),
        (":16:8", 8 * 16 * 1024),
        (":4096:2:16:8", 8519680),
        (":0:0", 0),
        ("", 33554432),
        ("nonsense", 33554432),
    ],
)
def test_the_environment_overrides_it(text: str, size: int) -> None:
    assert blas_workspace(chip("H100"), {"CUBLAS_WORKSPACE_CONFIG": text}).bytes == size


@pytest.mark.parametrize(("text", "size"), [("", MIB), ("2048", 2 * MIB), ("0", 0), ("x", MIB)])
def test_cublaslt_takes_one_mib_or_what_is_set_in_kib(text: str, size: int) -> None:
    assert blas_lt_workspace({"CUBLASLT_WORKSPACE_SIZE": text}).bytes == size


def test_the_record_says_the_same() -> None:
    """What the first call of each product kept: cuBLAS's 32 MiB; cuBLASLt's one with a bias."""
    for row in rows("mm", "bmm", "baddbmm", "mv", "dot", "mm backward", "linear backward"):
        assert row.persistent_bytes == (32 * MIB,), str(row)
        assert uses_blas(f"aten.{row.op.split()[0]}") or row.op == "linear backward"
    for row in rows("addmm", "linear"):
        assert row.persistent_bytes == (MIB, 32 * MIB), str(row)


def test_a_vector_alone_is_added_in_the_epilogue() -> None:
    assert adds_bias("aten.addmm", 1)
    assert not adds_bias("aten.addmm", 2)
    assert not adds_bias("aten.mm", 1)
    assert not adds_bias("aten.baddbmm", 1)


def test_every_kind_has_its_source() -> None:
    assert set(KINDS) == {"cuBLAS workspace", "cuBLASLt workspace", "operator's temporaries"}
    assert all(kind.source and kind.trust for kind in KINDS.values())


def test_the_context_is_less_than_a_gib_everywhere() -> None:
    for known in known_chips():
        assert (400 * MIB <= context_bytes(known) <= 700 * MIB) == known.is_cuda, known.name
        assert known.is_cuda or context_bytes(known) == 0


# In a run --------------------------------------------------------------------------------------


def kept(trace: Trace) -> Counter[tuple[str, int]]:
    """(name, bytes) of workspaces that outlive their operator."""
    return Counter(
        (storage.name, storage.bytes)
        for storage in trace.storages
        if storage.role is Role.WORKSPACE and storage.name != "operator's temporaries"
    )


BLAS, LT = ("cuBLAS workspace", 32 * MIB), ("cuBLASLt workspace", MIB)


def product() -> None:
    a = torch.zeros(64, 64, device="cuda")
    for _ in range(3):
        a @ a


def product_and_backward() -> None:
    a = torch.zeros(64, 64, device="cuda", requires_grad=True)
    for _ in range(3):
        (a @ a).sum().backward()


def biased() -> None:
    x = torch.zeros(64, 64, device="cuda")
    F.linear(x, x, x[0])


def matrix_added() -> None:
    x = torch.zeros(64, 64, device="cuda")
    torch.addmm(x, x, x)


def on_two_streams() -> None:
    product()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        product()
    product()


def no_product() -> None:
    x = torch.zeros(64, 64, device="cuda")
    (x + x).sum()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (product, {BLAS: 1}),
        (product_and_backward, {BLAS: 2}),  # autograd's thread has a handle of its own
        (biased, {BLAS: 1} if not releases.HERE.has_lt_workspace else {BLAS: 1, LT: 1}),
        (matrix_added, {BLAS: 1}),
        (on_two_streams, {BLAS: 2}),
        (no_product, {}),
    ],
)
def test_one_for_each_thread_and_stream(script, expected) -> None:  # type: ignore[no-untyped-def]
    assert kept(traced(script)) == expected


def test_the_environment_is_read_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert kept(traced(product)) == {("cuBLAS workspace", 128 * 1024): 1}


def test_a_workspace_counts_as_allocated_until_it_is_cleared() -> None:
    with torchtally.virtual_gpu("A100-SXM"):
        product()
        assert torch.cuda.memory_allocated() == 8519680
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == 0


def test_scratch_is_at_the_peak_and_gone_after() -> None:
    """The rows of 4096 x 4096 summed: 64 MiB, 16 KiB of results, 128 MiB of partial ones."""
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.empty(4096, 4096, device="cuda")
        y = x.sum(0)
        assert torch.cuda.memory_allocated() == 64 * MIB + 16384
        assert torch.cuda.max_memory_allocated() == 64 * MIB + 16384 + 128 * MIB + 512
        assert y.shape == (4096,)
