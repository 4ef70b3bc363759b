"""Templates of products: sums by hand on ten multiprocessors, and what others measured."""

from collections.abc import Iterator
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from benchmarks import published_templates as published
from tests.timing.roofline.chips import kernel_of, mm, toy
from tests.timing.roofline.test_convolutions import forward
from torchtally.chips import Chip, chip
from torchtally.chips.capabilities import capability
from torchtally.timing.constants import CONVOLUTION_TIMES, KERNEL_S, TEMPLATE_LATENCY_S
from torchtally.timing.roofline import templates
from torchtally.timing.roofline.kernel import Bound
from torchtally.timing.roofline.products import Product
from torchtally.timing.roofline.templates import resident_blocks, template_s
from torchtally.trace import Call, FusedKernel, Operations, Part, Tile

TILE = Tile(64, 64, 32, 3, 4)


def ampere() -> Chip:
    """Ten multiprocessors, 1 TFLOP/s: 64 x 64 x 32 take one of them 2.6 us."""
    return toy(compute_capability=(8, 0))


def half(M: int, N: int, K: int, batch: int = 1) -> Product:
    return Product(batch, M, N, K, "float16", 2)


STEP_S = 2 * 64 * 64 * 32 / (1e12 / 10)


def test_blocks_that_share_a_multiprocessor_take_turns() -> None:
    """Four warps with 32 elements a thread: 92 registers each, so five blocks on each of ten."""
    assert resident_blocks(half(64, 64, 64), TILE, capability((8, 0))) == 5
    # One step over K, then: a block on each, five, five and a last one.
    assert template_s(half(64, 640, 32), TILE, ampere()) == pytest.approx(STEP_S)
    assert template_s(half(64, 3200, 32), TILE, ampere()) == pytest.approx(5 * STEP_S)
    assert template_s(half(64, 3264, 32), TILE, ampere()) == pytest.approx(6 * STEP_S)
    assert template_s(half(64, 640, 320), TILE, ampere()) == pytest.approx(10 * STEP_S)
    # A batch has more blocks, and a tile that hangs over the edge is a whole one.
    assert template_s(half(64, 64, 32, batch=50), TILE, ampere()) == pytest.approx(5 * STEP_S)
    assert template_s(half(65, 640, 32), TILE, ampere()) == pytest.approx(2 * STEP_S)


def test_a_step_waits_for_a_load_asked_for_stages_before() -> None:
    fast = toy(compute_capability=(8, 0), multiprocessors=10**6)
    small = structs.replace(TILE, rows=16, columns=16, depth=16)
    one = Product(1, 16, 16, 160, "float16", 2)
    for stages in (2, 3, 5):
        tile = structs.replace(small, stages=stages)
        slow = 2 * 16**3 * 10**6 / 1e12
        assert slow > TEMPLATE_LATENCY_S
        assert template_s(one, tile, fast) == pytest.approx(10 * slow)
        quick = toy(compute_capability=(8, 0))
        assert template_s(one, tile, quick) == pytest.approx(10 * TEMPLATE_LATENCY_S / (stages - 1))
    # With one stage a block multiplies, and then asks for the next.
    alone = structs.replace(small, stages=1)
    quick_s = 2 * 16**3 * 10 / 1e12
    assert template_s(one, alone, toy(compute_capability=(8, 0))) == pytest.approx(
        10 * (TEMPLATE_LATENCY_S + quick_s)
    )


def test_shared_memory_limits_how_many_blocks_there_are() -> None:
    """163 KiB hold three blocks of five stages of (64 + 64) x 32 halves: 40 KiB each is four."""
    deep = structs.replace(TILE, stages=5)
    assert resident_blocks(half(64, 64, 64), deep, capability((8, 0))) == 163 // 40
    assert resident_blocks(half(64, 64, 64), deep, capability((8, 9))) == 99 // 40
    huge = Tile(256, 256, 128, 4, 8)
    assert resident_blocks(half(64, 64, 64), huge, capability((8, 0))) == 1


def test_without_tensor_cores_a_thread_of_few_elements_loads_more_than_it_multiplies() -> None:
    """64 elements: 1.6 / (1 + 12 / 8); 16: 1.6 / (1 + 12 / 4)."""
    single = Product(1, 64, 640, 32, "float32", 4)
    assert template_s(single, Tile(64, 64, 32, 3, 2), ampere()) == pytest.approx(
        max(STEP_S / 10 / 0.64, TEMPLATE_LATENCY_S / 2)
    )
    slow = toy(compute_capability=(8, 0), multiprocessors=1000)
    wide = Product(1, 64, 64000, 32, "float32", 4)
    many = template_s(wide, Tile(64, 64, 32, 3, 8), slow)
    few = template_s(wide, Tile(64, 64, 32, 3, 2), slow)
    assert many / few == pytest.approx(0.64 / 0.4)


def fused(operations: Operations = ()) -> Call:
    """(640, 320) @ (320, 640) with a function behind it that reads another operand."""
    product = mm(640, 320, 640)
    parts = (
        Part("aten.mm", (product,), 2 * 640 * 320 * 2, 0),
        Part("aten.gelu", (), 640 * 640 * 2, 640 * 640 * 2),
    )
    kernel = FusedKernel("template", parts, operations, TILE)
    return Call("inductor.triton_tem_fused_gelu_0", "", (), (), (), False, kernel)


def test_what_is_fused_is_computed_while_tensor_cores_wait() -> None:
    """A hundred tiles, ten to a multiprocessor: ten steps of each."""
    plain = kernel_of(fused(), ampere())
    assert plain.seconds == pytest.approx(10 * 10 * STEP_S + KERNEL_S)
    assert plain.bound is Bound.COMPUTE
    # A million additions on 5 T lanes at 0.6 of them.
    more = kernel_of(fused((("add", 10**6),)), ampere())
    assert more.seconds - plain.seconds == pytest.approx(1e6 / 3e12)


def test_bytes_count_where_they_take_longer() -> None:
    slow = toy(
        compute_capability=(8, 0),
        memory_bandwidth_bytes_per_s=1e9,
        achieved_bandwidth_bytes_per_s=1e9,
    )
    moved = 2 * 640 * 320 * 2 + 2 * 640 * 640 * 2
    kernel = kernel_of(fused(), slow)
    assert kernel.seconds == pytest.approx(moved / 1e9 + KERNEL_S)
    assert kernel.bound is Bound.MEMORY


def test_a_product_by_the_library_has_no_tile() -> None:
    """The same call without one is timed as the library's."""
    call = fused()
    assert call.fused is not None
    without = structs.replace(call, fused=structs.replace(call.fused, tile=None))
    assert kernel_of(without, ampere()) != kernel_of(call, ampere())


def test_a_template_of_a_convolution_takes_four_times_cudnns() -> None:
    call = forward(64, 128)
    kernel = FusedKernel("template", (Part(call.name, (call,), 1, 1),), (), TILE)
    template = Call("inductor.triton_tem_0", "", (), (), (), False, kernel)
    library = structs.replace(
        template, fused=FusedKernel("template", (Part(call.name, (call,), 1, 1),))
    )
    times = kernel_of(template, ampere()).seconds / kernel_of(library, ampere()).seconds
    assert times == pytest.approx(CONVOLUTION_TIMES, rel=0.05)


tiles = st.builds(
    Tile, st.sampled_from((16, 64, 128)), st.sampled_from((16, 64, 256)),
    st.sampled_from((16, 64, 128)), st.integers(1, 5), st.sampled_from((2, 4, 8)),
)  # fmt: skip
SIZES = st.integers(1, 5000)


@given(tiles, SIZES, SIZES, SIZES, st.sampled_from(("A100-SXM", "H100-SXM", "B200", "RTX-4090")))
def test_never_faster_than_the_peak_and_twice_the_work_never_takes_less(
    tile: Tile, M: int, N: int, K: int, name: str
) -> None:
    on = chip(name)
    seconds = template_s(half(M, N, K), tile, on)
    assert seconds >= half(M, N, K).flops / on.peak_flop_per_s("float16") * (1 - 1e-9)
    for more in (half(2 * M, N, K), half(M, 2 * N, K), half(M, N, 2 * K), half(M, N, K, batch=2)):
        assert template_s(more, tile, on) >= seconds * (1 - 1e-9)


# What others measured --------------------------------------------------------------------------


def groups(half: str) -> Iterator[list[published.Row]]:
    """Blackwell's only row of the library is far from the roofline's: its tiles are looked at by
    themselves.
    """
    for source in ("sglang", "sglang-diffusion", "depth-anything", "ithome"):
        rows = [row for row in published.choices() if (row.source, row.half) == (source, half)]
        if rows:
            yield rows


def test_tables_that_had_no_part_in_the_constants() -> None:
    """Times the library's: the mean of what is off, for the ten fastest of each product."""
    errors = {rows[0].source: published.error(rows) for rows in groups("B")}
    assert set(errors) == {"sglang", "depth-anything", "ithome"}
    assert max(errors.values()) < 0.13
    for rows in groups("B"):
        assert 0.9 < median(row.ratio for row in rows) < 1.1


def test_they_are_no_better_predicted_by_the_library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a template as fast as the library, they would be off by twice as much."""
    monkeypatch.setattr(published, "times", lambda product, tile, name: 1.0)
    assert min(published.error(rows) for rows in groups("B") if rows[0].source != "ithome") > 0.22


def test_tiles_of_blackwell() -> None:
    """(3840, 1152) @ (1152, 49136) with three tiles, in milliseconds."""
    rows = [row for row in published.choices() if row.chip == "B200"]
    predicted = [1e3 * template_s(row.product, row.tile, chip("B200")) for row in rows]
    assert predicted == pytest.approx([0.6288, 0.6299, 0.6728], rel=0.17)


def test_who_wins_on_an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and batched ones of an H100, which had no part but for the median of eighteen."""
    assert len(published.winners()) == 29
    assert len(published.rightly_won()) >= 26
    monkeypatch.setattr(templates, "MATRIX_SHARES", {})
    assert len(published.rightly_won()) < 20
