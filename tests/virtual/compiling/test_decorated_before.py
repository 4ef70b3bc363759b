"""Functions that were decorated before the session began, as a library's at import."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.traces import names, traced
from torchtally.virtual.stand_ins import active

ROWS = 64


@torch.compile
def shifted(x: Tensor) -> Tensor:
    return (x.sin() + 1).sum()


@pytest.mark.thorough
def test_they_are_compiled_within_it_and_in_the_next_one() -> None:
    for gpu in ("H100-SXM", "A100-SXM"):
        trace = traced(lambda: shifted(torch.ones(ROWS, ROWS, device="cuda")), gpu)
        assert any("triton" in name for name in names(trace))
        notes = [note.text for note in trace.notes]
        assert not any("eagerly" in text for text in notes), notes


def test_process_groups_begin_before_the_first_call() -> None:
    """`init_process_group` has Dynamo forget its rules, which are read while a frame is converted:
    methods of tensors are torch's own then.
    """

    def script() -> None:
        def shifted_by(x: Tensor, by: Tensor) -> Tensor:
            return (x + by).sin().sum()

        compiled = torch.compile(shifted_by)
        dist.init_process_group("nccl")
        x = torch.ones(ROWS, ROWS, device="cuda", requires_grad=True)
        compiled(x, torch.ones(ROWS, device="cuda")).backward()

    trace = traced(script, "8xH100-SXM")
    assert any("triton" in name for name in names(trace))
    assert not active()


def test_a_module_that_was_compiled_in_place_trains() -> None:
    module = nn.Linear(ROWS, ROWS)
    module.compile()

    def script() -> None:
        module.cuda()
        module(torch.ones(ROWS, ROWS, device="cuda")).relu().sum().backward()

    assert "aten.addmm" in names(traced(script))
    assert module.weight.grad is not None


def test_what_is_compiled_on_the_host_afterwards_is_torchs_own() -> None:
    """Passes of inductor are set up once in a process, for whichever device comes first."""
    traced(lambda: shifted(torch.ones(ROWS, ROWS, device="cuda")))
    import torch._inductor.fx_passes.post_grad as post_grad

    before = post_grad.lazy_init.cache_info().currsize
    post_grad.lazy_init()
    assert post_grad.lazy_init.cache_info().currsize == before == 1
