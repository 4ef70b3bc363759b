"""torch.compile on the virtual GPU: PyTorch's own inductor, what it makes, and where it belongs."""

import gc
import importlib
import json
import os
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import torchtally
from tests.traces import traced
from tests.truth.compiled import corpus
from tests.truth.compiled.__main__ import predicted
from tests.truth.compiled.cases import Block, Checkpointed, FlexBlock
from tests.truth.compiled.compare import differences
from tests.warm import commands
from torchtally.gates import check, parse_limits
from torchtally.ledger import Ledger, account
from torchtally.timing.targets import roofline
from torchtally.trace import Phase, Trace
from torchtally.views import by
from torchtally.views.throughput import throughput
from torchtally.views.tracks import tracks_of
from torchtally.virtual.compiling.kernels import operators_of
from torchtally.work import Kind

pytestmark = pytest.mark.one_case_in(2)

WIDTH, TOKENS, BATCH = 512, 256, 4


def train(model: nn.Module, run: object, steps: int = 2) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(x).float().pow(2).mean()  # type: ignore[operator]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def trace() -> Trace:
    def script() -> None:
        blocks = nn.Sequential(Block(), Block()).cuda()
        for block in blocks:
            block.compile()
        train(blocks, blocks)

    return traced(script)


@pytest.fixture(scope="module")
def ledger(trace: Trace) -> Ledger:
    return account(trace)


def notes(trace: Trace) -> dict[str, int]:
    return {note.text: note.count for note in trace.notes}


def test_bytes_belong_to_lines_of_the_script(ledger: Ledger) -> None:
    """Every byte that a fused kernel or a library's moves, forward, backward and optimizer."""
    of_lines: Counter[bool] = Counter()
    for entry in ledger.entries:
        of_lines[entry.line is not None and entry.line.is_own] += entry.cost.bytes
    assert of_lines[True] > 0
    assert of_lines[False] <= 0.01 * of_lines[True]


def test_blocks_are_compiled_once_and_run_for_each(trace: Trace, ledger: Ledger) -> None:
    """One graph forward and one backward; their operators belong to the block that ran."""
    ((text, graphs),) = notes(trace).items()
    assert text.startswith("torch.compile: a graph compiled by the inductor of PyTorch")
    assert graphs == 2
    modules = {path.module for path in ledger.by_module()}
    assert {"0.up", "1.up", "0.norm", "1.norm", "0", "1"} <= modules
    of_module = {path.module: total for path, total in ledger.by_module().items()}
    assert of_module["0.up"].flops == of_module["1.up"].flops > 0


def test_products_have_their_flops(ledger: Ledger) -> None:
    """N: tokens. D: width. 12 D^2 weights and causal attention counted in full, three passes."""
    N, D = BATCH * TOKENS, WIDTH
    products = 2 * N * 12 * D * D
    attention = 4 * N * TOKENS * D
    forward, backward = (ledger.by_phase()[phase] for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert forward.flops_matmul == 2 * (products + attention)
    assert backward.flops_matmul == 2 * (2 * products + 5 * attention // 2)


def test_bytes_of_fused_kernels_belong_to_lines(ledger: Ledger) -> None:
    ledger.check()
    placed = {line: total.bytes for line, total in ledger.by_line().items()}
    assert placed.get(None, 0) <= 0.01 * sum(placed.values())
    lines = {line.text for line in placed if line is not None}
    assert "return x + self.down(F.gelu(self.up(self.norm2(x))))" in lines


def test_a_kernel_has_the_operators_that_it_was_fused_of(ledger: Ledger) -> None:
    fused = [entry for entry in ledger.reported if entry.kind is Kind.FUSED]
    names = {entry.operator for entry in fused}
    assert {"aten.gelu", "aten.native_layer_norm", "aten.gelu_backward"} <= names
    by_kernel = by(ledger, "kernel")
    launches = [column.name for column in by_kernel.columns].index("launches")
    kernels = {entry.number for entry in ledger.reported}
    assert sum(int(row[launches] or 0) for row in by_kernel.rows) == len(kernels)  # type: ignore[arg-type]
    assert sum(entry.share for entry in fused) == pytest.approx(
        len({entry.number for entry in fused})
    )


def test_a_kernel_is_one_slice_of_the_timeline(ledger: Ledger) -> None:
    """With the FLOPs and bytes of all that is fused in it."""
    whole = list(ledger.kernels(ledger.reported))
    assert len(whole) == len({entry.number for entry in ledger.reported})
    assert sum(entry.cost.flops for entry in whole) == ledger.total.flops
    assert sum(entry.cost.bytes for entry in whole) == ledger.total.bytes
    (ranks,) = tracks_of(ledger.with_predicted_times(roofline("H100-SXM")))
    for track in ranks.tracks:
        slices = sorted(track.slices, key=lambda slice: slice.start_ns)
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(slices)), track.name


def test_fusion_moves_fewer_bytes_than_eager(ledger: Ledger) -> None:
    def script() -> None:
        blocks = nn.Sequential(Block(), Block()).cuda()
        train(blocks, blocks)

    eager = account(traced(script))
    assert ledger.total.bytes < 0.95 * eager.total.bytes
    assert ledger.total.flops_matmul == eager.total.flops_matmul
    assert ledger.memory.peak_bytes < eager.memory.peak_bytes


def test_what_is_computed_again_is_recomputation() -> None:
    def script() -> None:
        model = Checkpointed().cuda()
        train(model, torch.compile(model), steps=1)

    ledger = account(traced(script))
    phases = ledger.by_phase()
    products = 2 * BATCH * TOKENS * 12 * WIDTH**2
    assert phases[Phase.RECOMPUTE].flops_matmul >= 2 * products * 3 // 4
    assert phases[Phase.FORWARD].flops_matmul >= 2 * products


def test_torchs_own_functions_end_no_graph() -> None:
    """The session replaces factories; Dynamo takes them for what they stand for. Tokens are counted
    where the embedding is fused, once for two tables.
    """

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(512, 64), nn.Embedding(32, 64)
            self.values = nn.Embedding(512, 64)

        def forward(self, tokens: Tensor) -> Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            embedded: Tensor = self.words(tokens) + self.places(places)
            values = self.values(tokens)[:, :32].type_as(embedded).to(embedded)
            return embedded * torch.ones(64, device="cuda") + values

    def script() -> None:
        dist.init_process_group("nccl")  # torch tells its functions apart anew
        model = Embedding().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = torch.compile(model)
        for _ in range(2):
            run(torch.randint(0, 512, (4, 32), device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = traced(script, gpu="2xH100-SXM")
    (graphs,) = notes(trace).values()
    assert graphs == 2
    rates = throughput(account(trace, roofline=roofline("H100-SXM")))
    assert rates is not None
    assert rates.tokens is not None
    assert rates.tokens.size == 4 * 32


def test_graph_breaks_and_recompilations_are_told() -> None:
    def script() -> None:
        @torch.compile(dynamic=False)
        def scaled(x: Tensor) -> Tensor:
            x = x * 2
            print("", end="")
            return x + 1

        for tokens in (8, 16):
            scaled(torch.ones(tokens, 4, device="cuda"))

    text = " ".join(notes(traced(script)))
    place = f"{os.path.basename(__file__)}:"
    assert f"graph break at {place}" in text
    assert f"scaled ({place}" in text
    assert "recompiled" in text


def test_a_graph_that_inductor_cannot_compile_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    def fail(graph: object) -> None:
        raise NotImplementedError("no such lowering")

    monkeypatch.setattr(GraphLowering, "codegen", fail)

    def script() -> None:
        model = Block().cuda()
        train(model, torch.compile(model))

    trace = traced(script)
    (text,) = notes(trace)
    assert text.startswith("torch.compile ran a part eagerly: inductor failed with a graph of ")
    assert "no such lowering" in text
    [finding] = check(account(trace), parse_limits(["peak < 1GiB"]))
    assert not finding.is_decided, "by eager code in part, it would hold"
    assert len(trace.step_ends) == 2


@pytest.mark.thorough(
    "virtual/test_flex_attention.py, and test_a_mask_made_in_the_graph_is_counted_by_its_blocks"
)
def test_flex_attention_counts_what_its_mask_leaves() -> None:
    """A window of 256 of 1024 tokens: every query attends to 256 keys at most."""

    def script() -> None:
        model = FlexBlock(1024).cuda()
        run = torch.compile(model)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            run(torch.randn(2, 1024, WIDTH, device="cuda")).sum().backward()

    ledger = account(traced(script))
    (entry,) = [
        entry
        for entry in ledger.reported
        if entry.kind is Kind.ATTENTION and entry.op.phase is Phase.FORWARD and entry.is_first
    ]
    flops = sum(other.cost.flops for other in ledger.reported if other.number == entry.number)
    assert flops == 4 * 2 * 1024 * 256 * WIDTH


def test_the_users_cache_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torchtally.virtual_gpu("H100-SXM"):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device="cuda"))
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)


def test_torch_compiles_for_the_host_afterwards() -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device="cuda"))
    assert torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["graph break", "gpt2"])
def test_a_case_is_as_on_the_cuda_build(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, launches, memory at each, breaks; all cases: `python -m tests.truth.compiled`. What
    GPT-2's first step holds depends on the garbage that PyTorch collects after it compiles.
    """
    monkeypatch.setattr(sys, "executable", str(commands() / "python"))
    try:
        recorded = corpus.read(torch.__version__)
    except FileNotFoundError:
        pytest.skip(f"not recorded with PyTorch {torch.__version__}")
    assert list(differences(recorded["cases"][name], predicted(name))) == []


CHANGED = [
    ("graphs", "row"), ("launches", "kernel"), ("launches", "operands"), ("launches", "bytes"),
    ("breaks", ""), ("marks", "peak"),
]  # fmt: skip
"""(what is changed in the facts, how)."""


@pytest.mark.parametrize(("table", "what"), CHANGED)
def test_the_comparison_sees_what_differs(table: str, what: str) -> None:
    facts = corpus.read("2.13.0")["cases"]["graph break"]
    other = json.loads(json.dumps(facts))
    if what == "row":
        other["graphs"][0]["rows"][1][3] += 1
    elif table == "launches":
        place = ("kernel", "operands", "bytes").index(what)
        other["launches"][5][place] = "else"
    elif table == "breaks":
        other["breaks"].pop()
    else:
        other["marks"][2][3] -= 512
    assert list(differences(facts, facts)) == []
    (difference,) = differences(facts, other)
    assert difference.what


@pytest.mark.parametrize("is_known", [True, False])
def test_a_mask_made_in_the_graph_is_counted_by_its_blocks(is_known: bool) -> None:
    """Documents of 128 of 1024 tokens, as blocks made from token ids: forward and backward. Where
    the ids are not known every query is assumed to attend to every key.
    """
    tokens, blocks = 1024, 8

    class Documents(nn.Module):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            documents = ids // 128

            def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                return (q >= k) & (documents[q] == documents[k])

            each = torch.arange(blocks, dtype=torch.int32, device="cuda")
            numbers = torch.ones_like(each)[None, None]
            indices = ((each[:, None] + each) % blocks)[None, None].contiguous()
            block_mask = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=128, mask_mod=mask)
            return flex_attention(x, x, x, block_mask=block_mask)  # type: ignore[return-value]

    def script() -> None:
        ids = torch.arange(tokens, device="cuda")
        if not is_known:
            ids = torch.randn(1 << 20, device="cuda")[:tokens].argsort()
        x = torch.randn(1, 2, tokens, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.compile(Documents())(x, ids).sum().backward()

    trace = traced(script)
    counted = {
        call.name: [sizes for name, sizes in call.literals if name in ("attended", "computed")]
        for fused in trace.calls if fused.fused is not None
        for part in fused.fused.parts for call in part.calls if "flex" in call.name
    }  # fmt: skip
    assert set(counted) == {"torchtally.flex_attention", "torchtally.flex_attention_backward"}
    pairs = 2 * blocks * 128 * 128
    attended = (pairs, 2 * blocks * 128 * 129 // 2)
    expected = [attended, pairs] if is_known else [()]
    assert list(counted.values()) == [expected, expected]
    assert any("unknown values" in note for note in notes(trace)) is not is_known


def test_what_prepares_an_operand_does_not_compute_with_it() -> None:
    """Kernels that lay operands out for a call of attention have that call among their origins
    (torchtitan's Llama, each block compiled under selective checkpointing).
    """
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    copied = graph.call_function(torch.ops.aten.clone.default, (x,))
    attention = graph.call_function(
        torch.ops.aten._scaled_dot_product_flash_attention.default, (copied, copied, copied)
    )
    buffer = SimpleNamespace(get_origins=lambda: [copied, attention])
    node = SimpleNamespace(node=buffer, is_template=lambda: False)
    kernel = SimpleNamespace(get_nodes=lambda: [node])
    assert list(operators_of(kernel, frozenset())) == [copied, attention]
    assert list(operators_of(kernel, frozenset([attention]))) == [copied]


def test_a_call_of_a_library_is_known_by_its_operator() -> None:
    """One that falls back to ATen has no node of its own."""
    from torchtally.torch_private import compiler

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    sine = graph.call_function(torch.ops.aten.sin.default, (x,))
    fallback = SimpleNamespace(
        get_origin_node=lambda: None,
        get_origins=lambda: [x, sine],
        op_overload=torch.ops.aten.sin.default,
    )
    assert list(compiler.nodes_of_call(fallback)) == [sine]


def test_a_lookup_fused_with_a_norm_reads_the_rows_it_asks_for() -> None:
    """8 of 4,096 rows, where inductor's own count of fused nodes has the whole table."""
    rows, width = 8, 64

    def forward() -> None:
        table, norm = nn.Embedding(4096, width).cuda(), nn.LayerNorm(width).cuda()
        ids = torch.arange(rows, device="cuda")
        with torch.no_grad():
            torch.compile(lambda ids: norm(table(ids)))(ids)

    fused = [call.fused for call in traced(forward).calls if call.fused is not None]
    (lookup,) = [
        part for kernel in fused for part in kernel.parts if part.operator == "aten.embedding"
    ]
    assert rows * width * 4 <= lookup.bytes_read <= rows * (width * 4 + 8)


def test_a_table_whose_rows_are_added_to_is_not_moved_whole() -> None:
    """Behind zeros for all, the gradients of four rows: read and written, and their numbers."""
    rows, width, looked_up = 4096, 512, 4

    def script() -> None:
        table = nn.Embedding(rows, width).cuda()
        norm = nn.LayerNorm(width).cuda()
        run = torch.compile(lambda tokens: norm(table(tokens)).sum())
        run(torch.randint(0, rows, (looked_up,), device="cuda")).backward()

    added = [
        (part.bytes_read, part.bytes_written)
        for call in traced(script).calls
        for part in (call.fused.parts if call.fused else ())
        if part.operator == "aten.embedding_dense_backward"
    ]
    zeros, rows_added = (0, 4 * rows * width), (4 * looked_up * width + 8 * looked_up, 8192)
    assert sorted(added) == [zeros, rows_added]


def test_what_a_kernel_computes_is_counted_for_each_element_it_goes_over() -> None:
    """Angles of 64 positions, which 1000 rows look up: sines for all that is written."""

    def script() -> None:
        x = torch.ones(1000, 64, device="cuda")

        def rotate(x: Tensor) -> Tensor:
            return x * torch.arange(64, device="cuda").float().sin()

        torch.compile(rotate)(x)

    (kernel,) = (call.fused for call in traced(script).calls if call.fused)
    counts = dict(kernel.operations)
    assert counts["sin"] == counts["store"] == 64_000


def test_a_lookup_fused_with_what_is_written_in_place_is_compiled() -> None:
    """A buffer that a kernel reads, and a later part of it writes, orders its parts."""
    rows, width = 8, 64

    def forward() -> None:
        table, kept = nn.Embedding(4096, width).cuda(), torch.zeros(rows, width, device="cuda")
        ids = torch.arange(rows, device="cuda")

        def step(ids: Tensor) -> Tensor:
            x = table(ids) + kept
            kept.copy_(x)
            return x.sum(-1)

        with torch.no_grad():
            torch.compile(step)(ids)

    trace = traced(forward)
    assert any(call.fused is not None for call in trace.calls)
    assert not any("eagerly" in note.text for note in trace.notes)


def test_a_tensor_of_more_than_a_billion_elements_is_read_whole() -> None:
    """Where inductor's own count of fused nodes ends."""
    rows, columns = 1 << 15, 1 << 15

    def forward() -> None:
        x = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
        torch.compile(lambda x: (x.float().exp() * 2).sum(1) + x.float().amax(1))(x)

    kernels = [call.fused for call in traced(forward).calls if call.fused is not None]
    read = sum(part.bytes_read for kernel in kernels for part in kernel.parts)
    assert 2 * rows * columns <= read < 1.001 * 2 * rows * columns


def test_both_graphs_are_compiled_outside_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor takes dispatch modes off before it compiles a backward graph; stand-ins of the
    session and collections of garbage are no part of that either.
    """
    lowering: Any = importlib.import_module("torch._inductor.graph").GraphLowering
    native, native_to = lowering.codegen, torch.Tensor.to
    seen: list[tuple[bool, bool, bool]] = []

    def codegen(graph: Any) -> Any:
        is_outside = torch.Tensor.to is native_to
        seen.append((bool(graph.is_backward), is_outside, gc.isenabled()))
        return native(graph)

    monkeypatch.setattr(lowering, "codegen", codegen)

    def script() -> None:
        block = Block().cuda()
        train(block, torch.compile(block), steps=1)
        assert torch.Tensor.to is not native_to

    traced(script)
    assert seen == [(False, True, False), (True, True, False)]
    assert gc.isenabled()
