"""Names of torch's that are gone, and versions that differ: said by name, before anything runs."""

import re
import subprocess
import sys
import time
from importlib import import_module
from types import ModuleType

import pytest
import torch

import torchtally
from tests import test_torch_private as private_calls
from tests.traces import traced
from torchtally.errors import UnsupportedError
from torchtally.torch_private import needs, releases
from torchtally.torch_private.needs import check_names, has, missing
from torchtally.virtual.stand_ins import StandIn, check_owners

NAMED = {
    name
    for table in (needs.NEEDS, needs.DISTRIBUTED, needs.COMPILING)
    for names in table.values()
    for name in names.split()
}


def test_every_private_name_has_its_use() -> None:
    written = {
        chain
        for chain in private_calls.private_chains()
        if re.search(r"\._[A-Za-z]", chain) and not chain.endswith(("__get__", "__code__"))
    }
    leaves = {chain for chain in written if not any(o.startswith(f"{chain}.") for o in written)}
    covered = {chain for chain in leaves if any(is_within(chain, name) for name in NAMED)}
    assert leaves - covered == set()
    assert len(leaves) > 40
    assert len(NAMED) > len(leaves)


def is_within(chain: str, name: str) -> bool:
    """The name is the chain, or something of it."""
    return name == chain or name.startswith(f"{chain}.")


def test_this_torch_has_every_name() -> None:
    assert list(missing()) == []
    check_names()


def test_modules_that_come_later_are_files_of_torch() -> None:
    for module in needs.LATER:
        package = module.removesuffix(".__init__")  # of a package: imported by its own name
        assert import_module(package).__file__ == str(needs.file_of(module))
    assert not needs.file_of("torch.no.such").exists()


def test_a_name_that_is_gone_is_said_with_its_use() -> None:
    lost = {"counting on fingers": "torch._C._no_such_thing torch._C._storage_Use_Count"}
    with pytest.raises(UnsupportedError) as raised:
        check_names(lost)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith(f"tally cannot run with PyTorch {torch.__version__}")
    assert lines[1:-1] == ["  torch._C._no_such_thing: counting on fingers"]
    assert "2.11, 2.12, 2.13 and 2.15" in lines[-1]
    assert not has("torch.no.such.thing")


def test_the_check_takes_less_than_a_hundredth_of_a_second() -> None:
    start = time.process_time()
    check_names()
    assert time.process_time() - start < 0.01


@pytest.mark.thorough
def test_a_run_without_a_name_ends_with_one_message() -> None:
    name = "torch._C._current_autograd_node"
    program = (
        f"import torch, sys; del {name}\nfrom torchtally.cli import main\n"
        "sys.exit(main(['run', '-c', '1', '--gpu', 'H100-SXM']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("tally: error: tally cannot run with PyTorch")
    assert f"  {name}: " in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_a_stand_in_for_what_is_gone_is_an_error() -> None:
    module = ModuleType("torch.made_up")
    module.there = 1  # type: ignore[attr-defined]
    check_owners([StandIn(module, "there", 2), StandIn(torch._C, "_cuda_no_such_call", 2)])
    with pytest.raises(UnsupportedError, match=r"torch\.made_up\.gone: it is replaced while"):
        check_owners([StandIn(module, "gone", 2)])


# Versions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "name"),
    [("2.10.1", "2.11"), ("2.11.0", "2.11"), ("2.12.1+cpu", "2.12"), ("2.13.0", "2.13"),
     ("2.14.0", "2.13"), ("2.15.0+cu132", "2.15"), ("2.16.0a0+git1234", "2.15"), ("3.0.0", "2.15")],
)  # fmt: skip
def test_a_version_is_taken_as_the_newest_that_is_tested_and_not_newer(
    version: str, name: str
) -> None:
    release = releases.release_of(releases.version_of(version))
    assert release.name == name
    is_tested = version.startswith(f"{name}.")
    assert bool(releases.untested_remark(version)) is not is_tested


def test_what_differs_is_said_of_every_release_that_calls_other_operators() -> None:
    assert not releases.REFERENCE.differences
    for release in releases.RELEASES:
        said = releases.different(f"{release.name}.0")
        assert bool(said) is bool(release.differences)
        assert all(difference in said for difference in release.differences)


def test_an_unknown_version_is_noted_once_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    trace = traced(lambda: torch.ones(2, device="cuda").add_(1))
    notes = [note for note in trace.notes if "2.99.0" in note.text]
    assert [(note.text, note.count) for note in notes] == [
        ("tally is not tested with PyTorch 2.99.0, but with 2.11, 2.12, 2.13 and 2.15; it is "
         "assumed to behave like 2.15.", 1),
    ]  # fmt: skip


def test_attention_of_three_dimensions_takes_the_kernels_of_its_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As CUDA builds of 2.13 and 2.15 call it on a stand-in for the driver."""

    def script() -> None:
        q = torch.ones(4, 64, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        mask = torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda")
        attend = torch.nn.functional.scaled_dot_product_attention
        out = attend(q, q, q, attn_mask=mask)
        assert out.shape == (4, 64, 64)
        out.sum().backward()
        assert q.grad is not None
        assert q.grad.shape == q.shape

    for release in releases.RELEASES:
        monkeypatch.setattr(releases, "HERE", release)
        trace = traced(script)
        is_fused = any("cudnn_attention" in call.name for call in trace.calls)
        assert is_fused is (release.version >= (2, 15))


def test_versions_of_libraries_are_those_of_the_release() -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.backends.cudnn.version() == releases.HERE.cudnn
        assert torch.cuda.nccl.version() == releases.HERE.nccl  # type: ignore[no-untyped-call]
        assert torch.version.cuda is not None
