"""The recorded corpus is whole, and what it says of a step holds together; the comparison sees what
differs.
"""

import copy
import re
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest

from tests.truth.compiled import corpus
from tests.truth.compiled.cases import CASES
from tests.truth.compiled.compare import (
    MARK,
    PEAK_TOLERANCE,
    RESERVED_TOLERANCE,
    differences,
    failures,
)

RELEASES = ("2.13.0", "2.11.0")
PARTS = ["forward", "backward", "optimizer"]
"""Of a step; a function that is compiled with its backward pass is one part."""
Facts = dict[str, Any]

read = cache(corpus.read)
ALL = list(product(RELEASES, CASES))
EACH = pytest.mark.parametrize(("release", "name"), ALL, ids=[" ".join(each) for each in ALL])
GRAPHED = [name for name in CASES if "reduce-overhead" in name]


def facts_of(release: str, name: str) -> Facts:
    facts: Facts = read(release)["cases"][name]
    return facts


@pytest.mark.parametrize("release", RELEASES)
def test_it_says_where_it_comes_from(release: str) -> None:
    whole = read(release)
    assert whole["format"] == corpus.FORMAT
    assert whole["torch"] == release
    assert whole["assumptions"] == list(corpus.ASSUMPTIONS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", whole["date"])
    assert set(whole["about"]) == {"torch", "triton", "cuda", "cudnn", "transformers", "python"}
    assert whole["about"]["torch"].startswith(f"{release}+cu")
    assert set(whole["cases"]) == {name for each, name in ALL if each == release}


def test_the_kinds_of_model_that_people_compile_are_there() -> None:
    assert len(CASES) >= 14
    for kind in ("gpt2", "llama", "bert", "t5", "vit", "resnet50", "depthwise", "flex_attention"):
        assert any(kind in name for name in CASES)


@EACH
def test_memory_at_each_launch_agrees_with_the_marks(release: str, name: str) -> None:
    """A step's peak is at least what any launch of it saw; what is reserved holds what is
    allocated.
    """
    facts = facts_of(release, name)
    launches, marks = facts["launches"], facts["marks"]
    total = 0
    for step in range(CASES[name].steps):
        parts = [mark for mark in marks if mark[0] == step]
        assert [part[1] for part in parts] in (PARTS, PARTS[1:])
        counts = [part[6] for part in parts]
        assert counts == sorted(counts)
        taken = launches[total : total + counts[-1]]
        total += counts[-1]
        *_, peak, _, peak_reserved, _ = parts[-1]
        assert all(allocated <= peak for _, _, allocated, _ in taken)
        assert all(allocated <= reserved <= peak_reserved for _, _, allocated, reserved in taken)
        for mark in parts:
            assert mark[2] <= mark[3] <= mark[5]
            assert mark[2] <= mark[4] <= mark[5]
        assert all(one[3] <= other[3] for one, other in pairwise(parts))
    assert total == len(launches)


@EACH
def test_every_kernel_of_the_scheduler_is_launched_and_no_other(release: str, name: str) -> None:
    facts = facts_of(release, name)
    rows = [row for graph in facts["graphs"] for row in graph["rows"]]
    written = {kernel for row in rows for kernel in row[1].split(", ") if "triton" in kernel}
    launched = {launch[0] for launch in facts["launches"] if launch[0].startswith("triton")}
    assert launched == written
    for kind, kernel, nodes, read_bytes, written_bytes, flops, operators in rows:
        assert kind.endswith("SchedulerNode") or kind.startswith("Fused")
        # The last part of a sum over rows that another kernel has begun: a call of Tensor.sum.
        assert kernel or (nodes == 1 and "aten.sum.dim_IntList" in operators)
        assert nodes >= 1
        assert min(read_bytes, written_bytes, flops) >= 0
    assert any(graph["backward"] for graph in facts["graphs"])


@EACH
def test_operands_are_shapes_strides_and_dtypes(release: str, name: str) -> None:
    for _, operands, _, _ in facts_of(release, name)["launches"]:
        for shape, strides, dtype in operands:
            assert len(shape) == len(strides)
            assert re.fullmatch(r"u?int\d+|b?float\d+\w*|bool", dtype)


@pytest.mark.parametrize("release", RELEASES)
def test_what_each_case_is_there_for_has_happened(release: str) -> None:
    def launched(name: str) -> set[str]:
        return {launch[0] for launch in facts_of(release, name)["launches"]}

    assert "aten._scaled_dot_product_efficient_attention.default" in launched("gpt2")
    assert "aten._scaled_dot_product_flash_attention.default" in launched("gpt2, flash")
    assert "extern_kernels.bmm" in launched("gpt2, attention by hand")
    assert "extern_kernels.convolution" in launched("resnet50")
    assert any("flex_attention" in kernel for kernel in launched("flex_attention"))
    assert ["forward", 'print("", end="")'] in [
        place for _, *place in facts_of(release, "graph break")["breaks"]
    ]
    # The second length makes the size a symbol; the third fits it.
    assert len(facts_of(release, "dynamic shapes")["recompiles"]) == 1
    assert facts_of(release, "dynamic shapes from the first")["recompiles"] == []
    padded, plain = (
        max(mark[3] for mark in facts_of(release, name)["marks"])
        for name in ("gpt2, odd vocabulary, padded", "gpt2, dropout, odd vocabulary")
    )
    assert padded > plain


@pytest.mark.parametrize("name", GRAPHED)
@pytest.mark.parametrize("release", RELEASES)
def test_a_replayed_step_launches_nothing_and_its_pool_is_not_counted_as_allocated(
    release: str, name: str
) -> None:
    facts = facts_of(release, name)
    ends = [mark for mark in facts["marks"] if mark[1] == "optimizer"]
    recording, replayed = ends[1], ends[-1]
    assert recording[6] > 0
    assert replayed[6] == 0
    pools = facts["pools"][-1]
    assert pools
    for segments, reserved, allocated in pools:
        assert segments > 0
        assert 0 <= allocated <= reserved
    assert sum(reserved for _, reserved, _ in pools) <= replayed[4]
    # What max_memory_allocated says of a replayed step leaves out what lies in the pools.
    assert replayed[3] < recording[3]


def test_without_cuda_graphs_there_are_no_private_pools() -> None:
    for release, name in ALL:
        if name not in GRAPHED:
            assert not any(facts_of(release, name)["pools"])


# The comparison is shown to see each kind of difference.


@pytest.fixture
def real() -> Facts:
    return copy.deepcopy(facts_of("2.13.0", "graph break"))


@pytest.fixture
def predicted(real: Facts) -> Facts:
    return copy.deepcopy(real)


def named(real: Facts, predicted: Facts) -> list[str]:
    return [difference.what for difference in differences(real, predicted)]


def test_equal_facts_do_not_differ(real: Facts, predicted: Facts) -> None:
    assert named(real, predicted) == []
    assert list(failures(real, predicted)) == []


@pytest.mark.parametrize("place", range(7))
def test_a_row_that_differs_is_named(real: Facts, predicted: Facts, place: int) -> None:
    row = predicted["graphs"][0]["rows"][0]
    row[place] = row[place] + (1 if isinstance(row[place], int) else type(row[place])("x"))
    (what,) = named(real, predicted)
    assert what.endswith("of row 0 of graph 0")
    assert [failure.what for failure in failures(real, predicted)] == [what]


def test_a_missing_row_and_a_missing_graph_are_named(real: Facts, predicted: Facts) -> None:
    predicted["graphs"][0]["rows"].pop()
    assert named(real, predicted) == ["rows of graph 0"]
    predicted["graphs"].pop()
    assert named(real, predicted) == ["rows of graph 0", "graphs"]


def test_launches_that_differ_are_named(real: Facts, predicted: Facts) -> None:
    kernel = real["launches"][1][0]
    predicted["launches"][1][2] += 512
    assert named(real, predicted) == [f"bytes allocated of launch 1, {kernel}"]
    predicted["launches"][1][1][0][1] = [1, 512]
    assert named(real, predicted)[0] == f"operands of launch 1, {kernel}"
    predicted["launches"].pop()
    assert named(real, predicted)[-1] == "launches"
    assert len(list(failures(real, predicted))) == 3


def test_breaks_recompilations_and_pools_that_differ_are_named(
    real: Facts, predicted: Facts
) -> None:
    predicted["breaks"].pop()
    predicted["recompiles"].append(["forward", "0/0: 1 == 2"])
    predicted["pools"][0] = [[1, 2097152, 512]]
    assert named(real, predicted) == ["graph breaks", "recompilations", "private pools"]


def test_a_peak_may_be_half_a_percent_off_and_reserved_five_beyond_a_warm_and_a_cold_run(
    real: Facts, predicted: Facts
) -> None:
    peak, reserved = (2 + MARK.index(what) for what in ("peak allocated", "peak reserved"))
    end = predicted["marks"][-1]
    warm, cold = real["marks"][-1], real["cold"]["marks"][-1]
    end[peak] = int(warm[peak] * (1 + PEAK_TOLERANCE) * 0.9999)
    end[reserved] = int(max(warm[reserved], cold[reserved]) * (1 + RESERVED_TOLERANCE) * 0.9999)
    assert list(failures(real, predicted)) == []
    assert len(named(real, predicted)) == 2
    end[peak] = int(max(warm[peak], cold[peak]) * (1 + PEAK_TOLERANCE) * 1.0001)
    end[reserved] = int(end[reserved] * 1.001)
    assert [failure.what for failure in failures(real, predicted)] == [
        "peak allocated in the last step",
        "peak reserved in the last step",
    ]
