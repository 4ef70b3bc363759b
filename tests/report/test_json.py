"""The document for programs: stable keys, whole numbers, sums that agree."""

import json
from math import fsum

import pytest
from hypothesis import given, settings

from tests.report.test_text import HOSTILE, realistic
from tests.strategies import traces
from tests.timing.calibration.machines import H100 as MEASURED
from tests.views.stopwatch import DATASHEET, MS, NOBODY_KNOWS, stopwatch
from torchtally.chips import known_chips
from torchtally.fit.changes import Change
from torchtally.fit.results import ChangeResult
from torchtally.ledger import account
from torchtally.report.documents.chips import chips_document
from torchtally.report.documents.run import run_document
from torchtally.report.documents.tables import view_document
from torchtally.report.formats import render
from torchtally.report.keys import dumps
from torchtally.report.ledger import ledger_report
from torchtally.report.report import Look
from torchtally.timing.roofline import Bound, Kernel
from torchtally.trace import Trace
from torchtally.views import by

F = 2 * 512 * 1024 * 1024


MIB = 2**20
SMALL, LARGE = 2 * MIB, 4 * MIB
"""Bytes of a float32 matrix of 512 x 1024, and of one of 1024 x 1024."""


def test_every_document_names_its_schema_once() -> None:
    text = dumps(run_document(account(realistic())))
    assert json.loads(text)["schema"] == "run/1"
    assert text.count('"schema"') == 1


def test_the_keys_that_programs_rely_on() -> None:
    """A product forward and one backward: each reads a small and a large matrix, writes a small."""
    document = json.loads(dumps(run_document(account(realistic()))))
    assert document["script"] == "train.py"
    assert document["chip"] == "H100-SXM"
    assert document["steps"] == 2
    assert document["per"] == "steady-state step 2"
    assert document["convention"]["attention"] == "full"
    assert document["totals"] == {
        "flops": 2 * F,
        "flops_forward": F,
        "flops_backward": F,
        "flops_recompute": 0,
        "flops_optimizer": 0,
        "flops_evaluation": 0,
        "flops_matmul": 2 * F,
        "bytes_read": 2 * (SMALL + LARGE),
        "bytes_written": 2 * SMALL,
    }
    memory = document["memory"]
    assert memory["at_peak"] == {
        "parameters": LARGE,
        "gradients": 0,
        "optimizer_state": 0,
        "activations": SMALL,
        "inputs": 0,
        "buffers": 0,
        "temporaries": 2 * SMALL + 2 * 512,  # both steps' backward products, and two small blocks
        "workspaces": 0,
        "gathered_parameters": 0,
        "communication_buffers": 0,
        "unknown": 0,
        "kv_cache": 0,
    }
    assert memory["peak_allocated_bytes"] == LARGE + 3 * SMALL + 2 * 512
    assert memory["peak_reserved_bytes"] == memory["peak_allocated_bytes"]
    assert (memory["device"], memory["fits"], memory["out_of_memory"]) == ("cuda:0", True, None)
    assert document["parameters"] == document["trained_parameters"] == 1024 * 1024
    assert document["run"] == {
        "steps": 2,
        "models": 1,
        "flops": 4 * F,
        "seconds": None,
        "reported_share": {"flops_share": 0.5, "seconds_share": None},
        "evaluation_share": {"flops_share": 0.0, "seconds_share": None},
        "was_stopped": False,
        "steps_differ": "",
    }
    (line,) = document["lines"]
    assert (line["file"], line["line"]) == ("train.py", 41)
    assert (line["flops_forward"], line["flops_backward"]) == (F, F)
    assert (line["bytes_read"], line["bytes_written"]) == (2 * (SMALL + LARGE), 2 * SMALL)
    assert (line["bytes_saved"], line["bytes_allocated"]) == (SMALL, 2 * SMALL + 512)
    assert (line["count"], line["views"], line["copies"]) == (3, 0, 0)
    assert document["ops"][0] == {
        "operator": "aten.mm",
        "count": 2,
        "flops": 2 * F,
        "bytes_read": 2 * (SMALL + LARGE),
        "bytes_written": 2 * SMALL,
        "seconds": None,
        "kernel_s": None,
        "bound": None,
    }
    assert [module["module"] for module in document["modules"]] == ["h", "h.0", "h.0.mlp"]
    assert document["coverage"] == {
        "counted": 2,
        "free": 0,
        "uncounted": [{"operator": "h.0.mlp", "count": 1, "reason": "no rule"}],
    }
    assert document["placeholders"][0] == {
        "file": "train.py",
        "line": 9,
        "source": "logits = self.lm_head(x)",
        "operator": "aten._local_scalar_dense",
        "given": "1.0",
        "use": "number",
        "count": 7,
    }


def test_times_have_their_keys() -> None:
    """Two products of a millisecond, one of them backward; the rest takes none."""
    measured = Kernel(MS, Bound.COMPUTE, is_calibrated=True)
    document = json.loads(
        dumps(run_document(account(realistic(), roofline=stopwatch(mm=measured))))
    )
    time = document["time"]
    assert (time["chip"], time["calibrated"], time["untimed"]) == ("H100-SXM", None, [])
    assert time["step_s"] == pytest.approx(2 * MS)
    assert time["kernel_s"] == pytest.approx(2 * MS)
    assert list(time["by_bound"]) == ["compute", "overhead"]
    assert time["by_bound"]["compute"] == {
        "seconds": pytest.approx(2 * MS),
        "kernel_s": pytest.approx(2 * MS),
        "count": 2,
        "flops": 2 * F,
        "bytes_read": 2 * (SMALL + LARGE),
        "bytes_written": 2 * SMALL,
    }
    (line,) = document["lines"]
    assert line["seconds"] == line["kernel_s"] == pytest.approx(2 * MS)
    assert line["bound"] == "compute"
    assert [module["bound"] for module in document["modules"]] == [None, None, "compute"]
    assert document["modules"][0]["seconds_with_children"] == pytest.approx(2 * MS)
    assert [(op["operator"], op["bound"]) for op in document["ops"]] == [
        ("aten.mm", "compute"),
        ("h.0.mlp", None),
    ]


def test_utilisation_and_throughput_have_their_keys() -> None:
    document = json.loads(dumps(run_document(account(realistic(), roofline=stopwatch()))))
    mfu = document["utilisation"][0]
    assert mfu == {
        "key": "mfu_full",
        "name": "MFU",
        "basis": "products of the forward and backward pass",
        "unit": "flops",
        "amount": 2 * F,
        "per_s": pytest.approx(2 * F / 2e-3),
        "peak_per_s": pytest.approx(67e12),  # float32 of the H100's data sheet
        "peak": "promised dense float32",
        "peak_share": pytest.approx(2 * F / 2e-3 / 67e12),
    }
    assert [record["unit"] for record in document["utilisation"]] == ["flops", "flops", "bytes"]
    throughput = document["throughput"]
    assert throughput["sample_batch"] == {
        "per_step": 512,
        "operator": "aten.mm",
        "file": "train.py",
        "line": 41,
    }
    assert throughput["samples_per_s"] == pytest.approx(512 / 2e-3)
    assert throughput["steps_per_s"] == pytest.approx(500)
    assert (throughput["token_batch"], throughput["tokens_per_s"]) == (None, None)


def test_what_is_not_known_is_null() -> None:
    document = json.loads(dumps(run_document(account(realistic()))))
    assert document["time"] is document["throughput"] is None
    assert document["utilisation"] == []
    for part in ("lines", "modules", "ops"):
        row = document[part][0]
        assert row["seconds"] is row["kernel_s"] is row["bound"] is None


def test_calibrations_and_missing_times_are_named() -> None:
    roofline = stopwatch(calibration=MEASURED, mm=NOBODY_KNOWS)
    time = json.loads(dumps(run_document(account(realistic(), roofline=roofline))))["time"]
    assert time["calibrated"] == {
        "device": "NVIDIA H100 80GB HBM3",
        "date": "2026-11-21",
        "torch_version": "2.13.0",
        "calibrated_share": 0.0,
    }
    assert time["untimed"] == [
        {"operator": "aten.mm", "count": 2, "reason": "nobody knows how long aten.mm takes"}
    ]


def test_hostile_names_survive_the_round_trip() -> None:
    for name in HOSTILE:
        text = dumps(run_document(account(realistic(name, name, name))))
        assert text.isascii()
        assert json.loads(text)["script"] == name


def test_modules_come_in_the_order_of_their_numbers() -> None:
    names = [f"h.{n}" for n in (10, 2, 1)]
    document = [
        json.loads(dumps(run_document(account(realistic(name=name)))))["modules"][-1]
        for name in names
    ]
    assert [module["module"] for module in document] == names


@given(trace=traces())
@settings(deadline=None)
def test_the_parts_sum_to_the_totals(trace: Trace) -> None:
    document = json.loads(dumps(run_document(account(trace, roofline=DATASHEET))))
    totals = document["totals"]
    for part in ("lines", "modules", "ops"):
        for name, whole in (("seconds", "step_s"), ("kernel_s", "kernel_s")):
            parts = fsum(record[name] for record in document[part])
            assert parts == pytest.approx(document["time"][whole], abs=1e-12)
    by_bound = document["time"]["by_bound"].values()
    assert fsum(record["seconds"] for record in by_bound) == pytest.approx(
        document["time"]["step_s"]
    )
    for part in ("lines", "modules"):
        for phase in ("forward", "backward", "recompute", "optimizer"):
            assert (
                sum(record[f"flops_{phase}"] for record in document[part])
                == totals[f"flops_{phase}"]
            )
        for moved in ("bytes_read", "bytes_written"):
            assert sum(record[moved] for record in document[part]) == totals[moved]
    assert sum(op["flops"] for op in document["ops"]) == totals["flops"]
    assert sum(document["memory"]["at_peak"].values()) == document["memory"]["peak_allocated_bytes"]


def test_a_view_names_its_columns() -> None:
    ledger = account(realistic())
    document = json.loads(dumps(view_document(by(ledger, "line").top(1), ledger)))
    (row,) = document["rows"]
    assert (row["file"], row["line"]) == ("train.py", 41)
    assert row["flops_forward"] == document["totals"]["flops_forward"] == F


def test_every_chip_is_listed_with_its_source() -> None:
    document = json.loads(dumps(chips_document(known_chips())))
    h100 = next(chip for chip in document["chips"] if chip["name"] == "H100-SXM")
    assert 900e12 < h100["dense_peaks_flop_per_s"]["bfloat16"] < 1000e12
    assert all(chip["source"] for chip in document["chips"])


def test_changes_that_were_tried() -> None:
    checkpoint = Change("checkpoint every Block", 2, what_ifs=("checkpoint=Block",))
    smaller = Change("--batch 4", 3, settings="a:True", arguments=("--batch", "4"))
    results = [
        ChangeResult(checkpoint, 6 * MIB, 4 * MIB, True),
        ChangeResult(smaller, 9 * MIB, MIB, False),
    ]
    report = ledger_report(account(realistic()), changes=results)
    document = json.loads(render(report, "json", Look()))
    assert document["script"] == "train.py"
    assert document["changes"] == [
        {
            "change": "checkpoint every Block",
            "what_ifs": ["checkpoint=Block"],
            "allocator_settings": "",
            "arguments": None,
            "peak_reserved_bytes": 6 * MIB,
            "saved_bytes": 4 * MIB,
            "fits": True,
        },
        {
            "change": "--batch 4",
            "what_ifs": [],
            "allocator_settings": "a:True",
            "arguments": ["--batch", "4"],
            "peak_reserved_bytes": 9 * MIB,
            "saved_bytes": MIB,
            "fits": False,
        },
    ]
