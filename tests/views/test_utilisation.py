"""MFU, HFU and MBU by hand, by every convention, and against what PaLM published."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.builders import TraceBuilder, factory_call, mm_call, spec
from tests.timing.calibration.machines import HOST
from tests.traces import traced
from tests.views.stopwatch import DATASHEET, H100, MS, stopwatch, without_peak
from torchtally.ledger import Ledger, account
from torchtally.report.terminal import table_text
from torchtally.report.text import summary_text
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.targets import host_chip
from torchtally.trace import Call, Phase, Role, Trace
from torchtally.views import by
from torchtally.views.parameters import parameters_of
from torchtally.views.summary import summarise
from torchtally.views.utilisation import (
    PeakPart,
    PeakRate,
    Utilisation,
    laws_broken,
    looked_up,
    model_split,
    model_utilisation,
    peak_of,
    utilisations,
)
from torchtally.work.convention import Convention

M = 1024
PRODUCT_FLOPS = 2 * M**3


def page(ledger: Ledger) -> str:
    return summary_text(summarise(ledger))


def figures(ledger: Ledger) -> dict[str, Utilisation]:
    return {utilisation.key: utilisation for utilisation in utilisations(ledger)}


def one_step(*ops: tuple[Call, Phase]) -> Trace:
    """A step of these operators after one that allocates a weight."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(M, M), role=Role.PARAMETER)
    builder.end_step()
    for call, phase in ops:
        builder.run(call, (weight,) * len(call.inputs), phase=phase)
    builder.end_step()
    return builder.build()


def products(dtype: str = "bfloat16", **options: bool) -> Trace:
    """One product forward, two backward, one recomputed, one of the optimizer."""
    call = mm_call(M, M, M, dtype, **options)
    back = Phase.BACKWARD
    phases = (Phase.FORWARD, Phase.RECOMPUTE, back, back, Phase.OPTIMIZER)
    return one_step(*((call, phase) for phase in phases))


# By hand ---------------------------------------------------------------------------------------


def test_mfu_counts_what_the_model_asks_for_and_hfu_what_is_done() -> None:
    """Five products of a millisecond each; three of them are the model's."""
    by_name = figures(account(products(), roofline=stopwatch()))
    mfu, hfu = by_name["mfu_full"], by_name["hfu_full"]
    assert (mfu.amount, hfu.amount) == (3 * PRODUCT_FLOPS, 5 * PRODUCT_FLOPS)
    assert mfu.per_s == pytest.approx(3 * PRODUCT_FLOPS / (5 * MS))
    assert mfu.peak_per_s == 989.4e12
    assert mfu.of == "promised dense bfloat16"
    assert mfu.fraction == pytest.approx(3 * 2 * 1024**3 / 5e-3 / 989.4e12)
    assert hfu.fraction == pytest.approx(5 / 3 * (mfu.fraction or 0))


def evaluated(times: int) -> Trace:
    """A step of a product and its backward pass, then products that nothing trains on."""
    call = mm_call(M, M, M, "bfloat16")
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, *[Phase.EVALUATION] * times)
    return one_step(*((call, phase) for phase in phases))


@pytest.mark.parametrize("times", [0, 1, 5])
def test_mfu_of_a_whole_run_counts_the_work_whose_time_it_counts(times: int) -> None:
    """Every product takes a millisecond, so however many evaluate, MFU is that of one."""
    ledger = account(evaluated(times), roofline=stopwatch(), step="all")
    products_s = ledger.by_op()["aten.mm"].seconds
    mfu = figures(ledger)["mfu_full"]
    assert mfu.amount == (3 + times) * PRODUCT_FLOPS
    assert mfu.amount / products_s == pytest.approx(PRODUCT_FLOPS / MS)
    assert (", and of evaluation" in mfu.convention) == (times > 0)


@pytest.mark.parametrize("times", [0, 3])
def test_rules_by_parameters_leave_evaluation_out_of_both(times: int) -> None:
    def script() -> None:
        table = nn.Embedding(64, 32).cuda()
        head = nn.Linear(32, 64, bias=False).cuda()
        optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
        for _ in range(2):
            ids = torch.zeros(4, 16, dtype=torch.long, device="cuda")
            head(table(ids)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(times):
                with torch.no_grad():
                    head(torch.zeros(64, 32, device="cuda"))

    ledger = account(traced(script), roofline=DATASHEET, step="all")
    by_name = figures(ledger)
    evaluation = ledger.by_phase().get(Phase.EVALUATION)
    assert (evaluation is not None) == (times > 0)
    trained_s = (ledger.step_s or 0) - (evaluation.seconds if evaluation else 0)
    assert by_name["mfu_6n"].amount == 2 * 64 * 6 * (2 * 64 * 32)
    assert by_name["mfu_6n"].per_s == pytest.approx(by_name["mfu_6n"].amount / trained_s)


def test_mbu_is_bytes_over_time_over_bandwidth() -> None:
    figure = figures(account(products(), roofline=stopwatch()))["mbu"]
    assert figure.amount == 5 * 3 * 2 * M**2
    assert figure.peak_per_s == H100.memory_bandwidth_bytes_per_s
    assert figure.fraction == pytest.approx(15 * 2 * M**2 / 5e-3 / 3.35e12, rel=1e-3)


@pytest.mark.parametrize(
    ("trace", "dtype", "promised"),
    [
        (products("float32"), "float32", H100.peaks["float32"].flop_per_s),
        (products("float32", allow_tf32=True), "tf32", H100.peaks["tf32"].flop_per_s),
        (products("float16"), "float16", H100.peaks["float16"].flop_per_s),
        (products("complex64"), "float32", H100.peaks["float32"].flop_per_s),
    ],
    ids=["float32", "tf32", "float16", "complex64"],
)
def test_the_peak_is_that_of_the_dtype_in_which_most_products_are(
    trace: Trace, dtype: str, promised: float
) -> None:
    peak = peak_of(account(trace), H100)
    assert (peak.dtype, peak.flop_per_s) == (dtype, promised)


def test_the_dtype_of_most_flops_wins_not_that_of_most_products() -> None:
    small = [(mm_call(8, 8, 8, "float32"), Phase.FORWARD)] * 9
    trace = one_step(*small, (mm_call(M, M, M, "float16"), Phase.FORWARD))
    assert peak_of(account(trace), H100).dtype == "float16"


def one_of_each(first: str, second: str, size: int = M) -> Trace:
    """A product in each dtype, of M and of another size."""
    return one_step(
        (mm_call(M, M, M, first), Phase.FORWARD), (mm_call(size, size, size, second), Phase.FORWARD)
    )


def test_each_dtype_is_held_against_its_own_peak() -> None:
    """Two equal products, each at the chip's peak: the chip is fully used, not at 138 %."""
    at_peak = {
        dtype: PRODUCT_FLOPS / H100.peaks[dtype].flop_per_s for dtype in ("float32", "bfloat16")
    }
    ledger = account(one_of_each("float32", "bfloat16"), roofline=stopwatch())
    total = replace(ledger.total, seconds=sum(at_peak.values()))
    by_name = figures(replace(ledger, total=total))
    mfu, fp32, bf16 = (by_name[f"mfu_full{part}"] for part in ("", "_float32", "_bfloat16"))
    assert mfu.amount == 2 * PRODUCT_FLOPS == fp32.amount + bf16.amount
    assert mfu.fraction == pytest.approx(1)
    assert fp32.fraction + bf16.fraction == pytest.approx(mfu.fraction)
    assert mfu.of == "promised dense float32 and bfloat16"
    assert bf16.of == "promised dense bfloat16"
    assert model_split(ledger) == tuple(
        figure for figure in utilisations(ledger) if figure.name.startswith("of it in")
    )
    text = " ".join(page(ledger).split())
    assert "dense float32 and bfloat16 (" in text
    assert "% of it in float32," in text
    note = " ".join(by(ledger, "utilisation").note.split())
    assert "FLOPs of each dtype are compared with its own peak" in note


def test_a_head_in_another_dtype_does_not_change_the_peak_of_the_trunk() -> None:
    """A tenth of the FLOPs in float32 takes 1.6 times the time of the rest, at the peak."""
    trunk = (mm_call(M, M, M, "bfloat16"), Phase.FORWARD)
    head = (mm_call(M, M, M, "float32"), Phase.FORWARD)
    few, many = (
        figures(account(one_step(*[trunk] * n, head), roofline=Roofline(H100)))["mfu_full"]
        for n in (9, 10)
    )
    assert few.fraction == pytest.approx(many.fraction, rel=0.1)
    bf16, fp32 = (H100.peaks[dtype].flop_per_s for dtype in ("bfloat16", "float32"))
    assert few.peak_per_s == pytest.approx(10 / (9 / bf16 + 1 / fp32))


@pytest.mark.parametrize(("size", "others"), [(8, ""), (128, ", with less than 1 % in float32")])
def test_a_dtype_of_less_than_a_hundredth_is_named_where_it_shows(size: int, others: str) -> None:
    """0.2 % of the FLOPs at a 15th of the peak make 3 % of the rate."""
    ledger = account(one_of_each("bfloat16", "float32", size), roofline=stopwatch())
    assert figures(ledger)["mfu_full"].of == f"promised dense bfloat16{others}"


def test_a_dtype_that_does_not_show_beside_two_others_is_not_named() -> None:
    """Of half as many FLOPs in tf32 the rate is not that of bfloat16, whatever the third one is."""
    parts = [PeakPart("bfloat16", 2 * M**3, 1000.0), PeakPart("tf32", M**3, 500.0)]
    few, many = (PeakPart("float32", n, 50.0) for n in (1, M**3 // 100))
    rates = [PeakRate((*parts, part), is_measured=False).description for part in (few, many)]
    assert rates == [
        "promised dense bfloat16 and tf32",
        "promised dense bfloat16 and tf32, with less than 1 % in float32",
    ]


def test_products_without_a_peak_are_in_no_figure_and_said_so() -> None:
    ledger = account(
        one_of_each("bfloat16", "float16", 512), roofline=stopwatch(without_peak("float16"))
    )
    mfu = figures(ledger)["mfu_full"]
    assert mfu.amount == PRODUCT_FLOPS
    assert mfu.peak_per_s == H100.peaks["bfloat16"].flop_per_s
    note = " ".join(by(ledger, "utilisation").note.split())
    assert "In no figure: products in float16, for which Half has no peak." in note


def test_attention_in_full_that_would_exceed_the_chip_is_left_out() -> None:
    """A causal kernel computes half of what counts in full."""
    ledger = account(attention(is_causal=True), roofline=stopwatch())
    by_name = figures(ledger)
    seconds = 0.75 * by_name["mfu_full"].amount / (by_name["mfu_full"].peak_per_s or 1)
    fast = replace(ledger, total=replace(ledger.total, seconds=seconds))
    assert list(figures(fast)) == ["mfu_causal", "hfu_causal", "mbu"]
    assert figures(fast)["mfu_causal"].fraction == pytest.approx(0.5 / 0.75)
    shown = model_utilisation(fast)
    assert shown is not None
    assert shown.key == "mfu_causal"
    note = " ".join(by(fast, "utilisation").note.split())
    assert "would exceed the peak: MFU, attention in full, HFU, attention in full." in note


def test_what_exceeds_the_chip_is_a_broken_law() -> None:
    ledger = account(products(), roofline=stopwatch())
    assert laws_broken(ledger) == []
    at_once = replace(ledger, total=replace(ledger.total, seconds=1e-9))
    assert [law.split(" is ")[0] for law in laws_broken(at_once)] == ["MFU", "HFU", "MBU"]


def test_a_chip_without_tf32_computes_in_float32() -> None:
    ledger = account(products("float32", allow_tf32=True))
    assert peak_of(ledger, without_peak("tf32")).dtype == "float32"


def test_without_a_peak_there_is_no_number_but_a_reason() -> None:
    ledger = account(products(), roofline=stopwatch(without_peak("bfloat16")))
    mfu = figures(ledger)["mfu_full"]
    assert (mfu.peak_per_s, mfu.fraction) == (None, None)
    assert mfu.per_s == pytest.approx(3 * PRODUCT_FLOPS / (5 * MS))
    text = " ".join(table_text(by(ledger, "utilisation")).split())
    assert "No MFU: most products are in bfloat16, for which the Half has no peak." in text


def test_a_cpus_peak_is_the_best_that_was_measured() -> None:
    ledger = account(products("float32"), roofline=Roofline(host_chip(HOST), HOST))
    by_name = figures(ledger)
    assert by_name["mfu_full"].of == "best measured float32"
    assert by_name["mfu_full"].peak_per_s == 2e11
    assert by_name["mbu"].of == "best measured bandwidth"


def test_a_step_without_products_has_no_mfu() -> None:
    ledger = account(one_step((factory_call(M), Phase.FORWARD)), roofline=stopwatch())
    assert list(figures(ledger)) == ["mbu"]
    assert model_utilisation(ledger) is None
    assert "no matrix products" in by(ledger, "utilisation").note


def test_a_step_that_takes_no_time_has_no_rate() -> None:
    ledger = account(products(), roofline=stopwatch(mm=Kernel(0.0, Bound.COMPUTE)))
    assert ledger.step_s == 0
    assert {utilisation.per_s for utilisation in utilisations(ledger)} == {None}


# Attention -------------------------------------------------------------------------------------

B, H, S, D = 2, 3, 64, 16
POINTS = B * H * S * S


def attention(*, is_causal: bool, value_dim: int = D) -> Trace:
    """A fused forward and its backward."""
    shapes = {"query": (B, H, S, D), "key": (B, H, S, D), "value": (B, H, S, value_dim)}
    inputs = tuple(
        spec(*shape, argument=name, dtype="bfloat16", storage=at)
        for at, (name, shape) in enumerate(shapes.items())
    )
    out = spec(B, H, S, value_dim, dtype="bfloat16", storage=3)
    name = "aten._scaled_dot_product_flash_attention"
    literals = (("is_causal", True),) if is_causal else ()
    forward = Call(name, "default", inputs, (out,), literals)
    backward = Call(f"{name}_backward", "default", inputs, (out,), literals)
    return one_step((forward, Phase.FORWARD), (backward, Phase.BACKWARD))


def test_mfu_counts_attention_backward_as_twice_its_forward() -> None:
    """Two products forward, four backward; five are done, the scores once more."""
    by_name = figures(account(attention(is_causal=False), roofline=stopwatch()))
    assert by_name["mfu_full"].amount == 6 * 2 * POINTS * D
    assert by_name["hfu_full"].amount == 7 * 2 * POINTS * D
    assert "mfu_causal" not in by_name


def test_heads_of_other_dims_count_as_their_products_do() -> None:
    """Scores in D, weights by values in E: forward D + E, backward twice that, done 3 D + 2 E."""
    E = 24
    by_name = figures(account(attention(is_causal=False, value_dim=E), roofline=stopwatch()))
    assert by_name["mfu_full"].amount == 3 * 2 * POINTS * (D + E)
    assert by_name["hfu_full"].amount == 2 * POINTS * ((D + E) + (3 * D + 2 * E))


@pytest.mark.parametrize("convention", Convention)
def test_both_conventions_stand_side_by_side_whichever_the_ledger_has(
    convention: Convention,
) -> None:
    ledger = account(attention(is_causal=True), convention=convention, roofline=stopwatch())
    by_name = figures(ledger)
    assert by_name["mfu_full"].amount == 2 * by_name["mfu_causal"].amount == 6 * 2 * POINTS * D
    assert by_name["hfu_full"].amount == 2 * by_name["hfu_causal"].amount == 7 * 2 * POINTS * D
    shown = model_utilisation(ledger)
    assert shown is not None
    assert shown.key == f"mfu_{convention}"


# Rules by parameters ---------------------------------------------------------------------------

LAYERS, HEADS, HEAD, TOKENS, BATCH, VOCABULARY = 2, 4, 16, 128, 2, 512
WIDTH = HEADS * HEAD
BLOCK = 12 * WIDTH**2
"""Weights of a block: attention has 4 d^2, the layers after it 8 d^2."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = (BATCH, TOKENS, HEADS, HEAD)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH))
        return x + self.down(F.gelu(self.up(x)))


class GPT(nn.Module):
    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if is_tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.blocks(x))


def gpt(*, is_tied: bool) -> Ledger:
    def train() -> None:
        model = GPT(is_tied=is_tied).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            ids = torch.zeros(BATCH, TOKENS, dtype=torch.long, device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(ids)
                loss = F.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    ledger = account(traced(train), roofline=DATASHEET)
    ledger.check()
    return ledger


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_the_conventions_of_a_gpt_are_related_as_papers_say(is_tied: bool) -> None:
    """In full is 6 N of the weights that are multiplied, and 12 L H Q T for each token."""
    ledger = gpt(is_tied=is_tied)
    by_name = figures(ledger)
    tokens = BATCH * TOKENS
    head, positions = VOCABULARY * WIDTH, TOKENS * WIDTH
    multiplied = LAYERS * BLOCK + head
    N = multiplied + positions + (0 if is_tied else head)
    attention = 12 * LAYERS * HEADS * HEAD * TOKENS
    assert by_name["mfu_6n"].amount == 6 * N * tokens
    assert by_name["mfu_6n_inner"].amount == 6 * multiplied * tokens
    assert by_name["mfu_palm"].amount == (6 * N + attention) * tokens
    assert by_name["mfu_full"].amount == (6 * multiplied + attention) * tokens
    assert by_name["mfu_causal"].amount == (6 * multiplied + attention // 2) * tokens
    found_parameters = parameters_of(ledger)
    assert found_parameters is not None
    assert found_parameters.elements == found_parameters.trained == N
    assert found_parameters.without(looked_up(ledger)).elements == multiplied
    assert {figure.of for key, figure in by_name.items() if key != "mbu"} == {
        "promised dense bfloat16"
    }


def test_palms_rule_gives_palms_figure() -> None:
    """PaLM 540B, arXiv 2204.02311, section 4.1 and appendix B: 238.3 K tokens/s on 6144 TPU v4 of
    275 TFLOP/s are an MFU of 46.2 %, with attention; of 45.7 % without.
    """
    N, per_token, peak = 540.35e9, 12 * 118 * 48 * 256 * 2048, 6144 * 275e12
    assert 238.3e3 * (6 * N + per_token) / peak == pytest.approx(0.462, abs=5e-4)
    assert 238.3e3 * 6 * N / peak == pytest.approx(0.457, abs=5e-4)


def test_a_name_says_how_attention_counts_where_there_is_any() -> None:
    with_it, without = (
        model_utilisation(account(trace, roofline=stopwatch()))
        for trace in (attention(is_causal=False), products())
    )
    assert with_it is not None
    assert without is not None
    assert (with_it.name, without.name) == ("MFU, attention in full", "MFU")


def test_without_token_ids_there_is_no_rule_by_parameters() -> None:
    ledger = account(products(), roofline=stopwatch())
    assert not {"mfu_6n", "mfu_palm"} & set(figures(ledger))
    assert "rules by parameters do not apply" in by(ledger, "utilisation").note


def test_the_view_shows_every_figure_and_names_its_peak() -> None:
    ledger = gpt(is_tied=True)
    table = by(ledger, "utilisation")
    assert table.column("name") == tuple(utilisation.name for utilisation in utilisations(ledger))
    assert table.column("peak_share") == tuple(
        utilisation.fraction for utilisation in utilisations(ledger)
    )
    assert all(table.column("basis"))
    text = table_text(table, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "MFU, attention in full" in text
    assert "H100-SXM's promised dense bfloat16" in " ".join(text.split())
    assert table.column("bytes")[-1] == ledger.total.bytes


def test_another_chip_has_another_peak() -> None:
    trace = products()
    half = replace(H100, peaks={"bfloat16": replace(H100.peaks["bfloat16"], flop_per_s=494.7e12)})
    whole, twice = (
        figures(account(trace, roofline=stopwatch(chip)))["mfu_full"].fraction
        for chip in (H100, half)
    )
    assert twice == pytest.approx(2 * (whole or 0))
