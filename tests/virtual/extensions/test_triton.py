"""A launch of a script's Triton kernel is an operator, eager and compiled; no GPU is needed.

Each kernel moves 1 MiB tensors of float32: 512 x 512 elements.
"""

import ast

import pytest
import torch
from torch import Tensor

import torchtally
from torchtally.errors import UnsupportedError, UsageError
from torchtally.trace import Phase
from torchtally.virtual.extensions import declared
from torchtally.virtual.extensions.accesses import Accesses, accesses_of, in_source, nodes

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

MIB = 1024**2


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def scale_kernel(x_ptr, factor, n_elements, BLOCK_SIZE: tl.constexpr):
    pointers = x_ptr + tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(pointers, tl.load(pointers) * factor)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)](x, y, out, n, BLOCK_SIZE=1024)
    return out


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "_declared", {})


def traced(step):
    """The ledger of one run of a function on two tensors of a MiB."""

    def run() -> None:
        x, y = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
        step(x, y)

    trace = torchtally.run(run, gpu="H100-SXM")
    return torchtally.account(trace, step="all", roofline=torchtally.roofline("H100-SXM"))


def launches(ledger, name: str):
    return [entry for entry in ledger.entries if entry.call.name == name]


def test_a_launch_reads_two_and_writes_one():
    ledger = traced(add)
    (entry,) = launches(ledger, "triton.add_kernel")
    assert (entry.cost.bytes_read, entry.cost.bytes_written) == (2 * MIB, 1 * MIB)
    assert entry.line is not None
    assert entry.line.text.startswith("add_kernel[lambda")
    (uncounted,) = ledger.coverage.uncounted
    assert (uncounted.op, uncounted.count) == ("triton.add_kernel", 1)
    assert "torchtally.declare_cost" in uncounted.reason
    assert ledger.step_s > 3 * MIB / 3.35e12  # its bytes take time, though FLOPs are unknown


def test_what_is_read_and_written_through_one_pointer_moves_twice():
    ledger = traced(lambda x, y: scale_kernel[(256,)](x, 2.0, x.numel(), BLOCK_SIZE=1024))
    (entry,) = launches(ledger, "triton.scale_kernel")
    assert (entry.cost.bytes_read, entry.cost.bytes_written) == (1 * MIB, 1 * MIB)


def test_declared_flops_and_bytes_of_a_launch():
    torchtally.declare_cost("add_kernel", flops=lambda n_elements: n_elements, bytes=MIB * 9)
    ledger = traced(add)
    (entry,) = launches(ledger, "triton.add_kernel")
    assert (entry.cost.flops, entry.cost.bytes) == (512 * 512, 9 * MIB)
    assert not ledger.coverage.uncounted
    assert ledger.total.flops_matmul == 0


def test_declared_flops_of_tensor_cores_are_matrix_work():
    """A product's worth in a millisecond: 0.6 PFLOP/s or more on an H100, far from 67 TFLOP/s."""
    torchtally.declare_cost("add_kernel", flops=lambda x_ptr: 10**12, tensor_cores=True)

    def step(x: Tensor, y: Tensor) -> None:
        add(x.bfloat16(), y.bfloat16())

    ledger = traced(step)
    assert ledger.total.flops_matmul == 10**12
    assert 1e12 / 989.4e12 < ledger.step_s < 1e12 / 500e12


def test_a_declaration_that_gives_no_count_is_refused(gpu):
    torchtally.declare_cost("add_kernel", flops=lambda n_elements: -1)
    x = torch.ones(4, device="cuda")
    with pytest.raises(UsageError, match=r"declare_cost\('add_kernel'\): flops gave -1"):
        add(x, x)


def test_a_launch_in_the_backward_pass_belongs_to_it():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return add(x, x)

        @staticmethod
        def backward(ctx, grad):
            return add(grad, grad)

    ledger = traced(lambda x, y: Doubled.apply(x.requires_grad_()).sum().backward())
    phases = [entry.op.phase for entry in launches(ledger, "triton.add_kernel")]
    assert phases == [Phase.FORWARD, Phase.BACKWARD]


def test_autotuned_kernels_and_heuristics_take_their_first_configuration():
    configs = [triton.Config({"BLOCK_SIZE": size}) for size in (128, 256)]
    seen: list[int] = []
    tuned = triton.autotune(configs, key=["n_elements"])(
        triton.heuristics({"factor": lambda args: seen.append(args["BLOCK_SIZE"]) or 2.0})(
            scale_kernel
        )
    )
    ledger = traced(lambda x, y: tuned[lambda meta: (4,)](x, n_elements=x.numel()))
    assert len(launches(ledger, "triton.scale_kernel")) == 1
    assert seen == [128]
    assert any("first of their configurations" in note.text for note in ledger.trace.notes)


def test_numbers_that_it_is_not_compiled_for_make_no_other_call():
    """Of a seed that changes with each step, steps are still alike."""

    def step(x: Tensor, y: Tensor) -> None:
        for n in (1000, 2000):
            scale_kernel[(1,)](x, 2.0, n, BLOCK_SIZE=1024)

    ledger = traced(step)
    assert len({entry.op.call for entry in launches(ledger, "triton.scale_kernel")}) == 1


def test_a_compiled_function_launches_the_scripts_kernel_and_its_own():
    torchtally.declare_cost("add_kernel", flops=lambda n_elements, BLOCK_SIZE: BLOCK_SIZE)

    def twice(x: Tensor, y: Tensor) -> Tensor:
        return add(x * 2, y).relu()

    ledger = traced(lambda x, y: torch.compile(twice)(x, y))
    (entry,) = launches(ledger, "triton.add_kernel")
    assert (entry.cost.bytes_read, entry.cost.bytes_written) == (2 * MIB, 1 * MIB)
    assert entry.cost.flops == 1024
    assert entry.line is not None
    assert entry.line.text.startswith("add_kernel[lambda")
    names = [entry.call.name for entry in ledger.entries if entry.is_first]
    assert sum(name.startswith("inductor.triton_poi") for name in names) == 2


def test_an_operator_of_triton_kernels_runs_its_own_code():
    @torch.library.triton_op("tally_tests::summed", mutates_args=())
    def summed(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(add_kernel)[(256,)](x, y, out, x.numel(), 1024)
        return out

    ledger = traced(summed)
    assert len(launches(ledger, "triton.add_kernel")) == 1
    assert not launches(ledger, "tally_tests.summed")


def test_values_that_a_kernel_may_have_changed_are_not_known_any_more(gpu):
    x, y, out = (torch.ones(4, device="cuda") for _ in range(3))
    add_kernel[(1,)](x, y, out, 4, BLOCK_SIZE=1024)
    assert x.sum().item() == 4
    assert out.sum().item() == 1  # the placeholder


def test_a_cuda_graph_launches_it_at_each_replay():
    def step(x: Tensor, y: Tensor) -> None:
        out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add_kernel[(256,)](x, y, out, x.numel(), BLOCK_SIZE=1024)
        for _ in range(3):
            graph.replay()

    assert len(launches(traced(step), "triton.add_kernel")) == 3


def test_host_tensors_and_what_only_a_compiled_kernel_has_are_refused(gpu):
    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match="cpu tensor"):
        add(x.cpu(), x)
    with pytest.raises(TypeError):
        add_kernel[(1,)](x)
    compiled = scale_kernel.warmup(x, 2.0, 4, BLOCK_SIZE=1024, grid=(1,))
    with pytest.raises(UnsupportedError, match="scale_kernel is not compiled"):
        _ = compiled.n_regs


def test_triton_is_as_it_was_afterwards():
    with torchtally.virtual_gpu("H100-SXM"):
        replaced = triton.runtime.jit.JITFunction.run
        assert triton.runtime.driver.active.get_current_target().arch == 90
    assert triton.runtime.jit.JITFunction.run is not replaced
    assert triton.runtime.driver._active is None


SOURCES = """
def follows(x_ptr, y_ptr, out_ptr, n):
    x_ptr += n
    for i in range(n):
        block = tl.make_block_ptr(base=x_ptr, shape=(n,), strides=(1,), offsets=(0,))
        first, second = out_ptr + i, y_ptr
        tl.store(first, tl.load(tl.advance(block, (i,))))
        first += 1

def helps(pointer, value):
    tl.store(pointer, value)

def calls(x_ptr, out_ptr, rest_ptr):
    helps(value=tl.load(x_ptr), pointer=out_ptr)

def counts(x_ptr, counter_ptr):
    tl.atomic_add(counter_ptr, tl.load(x_ptr))

def describes(desc, out_ptr, n):
    tile = desc.load([0, n]).to(tl.float32)
    tl.make_tensor_descriptor(out_ptr, [n], [1], [n]).store([0], tile)

def indexes(rows_ptr, table_ptr, out_ptr):
    row = tl.load(rows_ptr)
    tl.store(out_ptr + row, tl.load(table_ptr + row))

def unknown(x_ptr, out_ptr):
    tl.inline_asm_elementwise("", "", [out_ptr], tl.int32, True, 1)
    tl.load(x_ptr)
"""


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        ("follows", "x_ptr", "out_ptr"),
        ("calls", "x_ptr", "out_ptr"),
        ("counts", "x_ptr counter_ptr", "counter_ptr"),
        ("describes", "desc", "out_ptr"),
        ("indexes", "rows_ptr table_ptr", "out_ptr"),
        ("unknown", "x_ptr out_ptr", "out_ptr"),
    ],
)
def test_pointers_are_followed_to_loads_and_stores(name: str, read: str, written: str):
    tree = ast.parse(SOURCES)
    (function,) = (each for each in nodes(tree, ast.FunctionDef) if each.name == name)
    expected = Accesses(frozenset(read.split()), frozenset(written.split()))
    accesses = accesses_of(function, in_source(tree))
    tensors = frozenset(
        {"x_ptr", "y_ptr", "out_ptr", "counter_ptr", "rest_ptr", "desc", "rows_ptr", "table_ptr"}
    )
    assert Accesses(accesses.read & tensors, accesses.written & tensors) == expected
