"""`tally bench` as a user meets it, with a measurement that takes no time."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from tests import calibrations
from torchtally.cli import INTERRUPTED, main
from torchtally.errors import UsageError
from torchtally.timing.calibration import Calibration
from torchtally.timing.calibration.file import read, write
from torchtally.timing.calibration.library import PLACE, files, folder, keep
from torchtally.views.bench import estimated_float32

Said = Callable[[str, float], None]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where calibrations are kept: a folder of this test's own."""
    monkeypatch.setenv(PLACE, str(tmp_path / "kept"))
    return folder()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was measured, without torch: there is no GPU, and the CPU is made up."""
    measured: list[tuple[str, bool]] = []

    def made_up(device: str, *, is_quick: bool, report: Said, **_: object) -> Calibration:
        measured.append((device, is_quick))
        if device == "cuda":
            raise UsageError("There is no GPU here.")
        report("memory", 0.0)
        report("memory", 0.1)
        report("products", 0.5)
        return calibrations.cpu()

    stand_in(monkeypatch, made_up)
    return measured


def stand_in(monkeypatch: pytest.MonkeyPatch, measure: object) -> None:
    module = ModuleType("torchtally.bench.run")
    module.bench = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchtally.bench.run", module)


def is_same(one: Calibration, other: Calibration) -> bool:
    """But for the last digits of the samples' times, which a file does not have."""
    calls = [[sample.call for sample in calibration.samples] for calibration in (one, other)]
    return replace(one, samples=()) == replace(other, samples=()) and calls[0] == calls[1]


def test_it_measures_keeps_and_prints(
    kept: Path, asked: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--device", "cpu", "--quick"]) == 0
    out, err = capsys.readouterr()
    assert asked == [("cpu", True)]
    (path,) = kept.iterdir()
    assert is_same(read(path), calibrations.cpu())
    assert str(path) in err
    assert "Products: achieved against promised" in out
    assert err.count("measuring memory") == 1
    assert "measuring products, 50.0 % done" in err


def test_auto_is_the_cpu_where_there_is_no_gpu(asked: list[tuple[str, bool]]) -> None:
    assert main(["bench"]) == 0
    assert asked == [("cuda", False), ("cpu", False)]


def test_a_gpu_asked_for_by_name_is_not_replaced(
    asked: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--device", "cuda"]) != 0
    assert asked == [("cuda", False)]
    assert "no GPU here" in capsys.readouterr().err


def test_a_gpu_that_fails_midway_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    def fails(device: str, *, is_quick: bool, report: Said, **_: object) -> Calibration:
        report("memory", 0.0)
        raise UsageError(f"{device} fell off the bus.")

    stand_in(monkeypatch, fails)
    assert main(["bench"]) != 0
    assert not kept.exists()


def interrupted(
    device: str, *, report: Said, keep: Callable[[Calibration], None], **_: object
) -> Calibration:
    report("products", 0.05)
    keep(replace(calibrations.cpu(), missing=("attention", "issuing")))
    raise KeyboardInterrupt


def test_what_an_interrupted_measurement_found_is_kept_apart(
    monkeypatch: pytest.MonkeyPatch, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Predictions do not find it, and it does not replace a whole one."""
    stand_in(monkeypatch, interrupted)
    whole = keep(calibrations.cpu())
    before = whole.read_bytes()
    assert main(["bench", "--device", "cpu", "-o", str(tmp_path / "it.json")]) == INTERRUPTED
    assert not (tmp_path / "it.json").exists()
    out, err = capsys.readouterr()
    assert not out
    (partial,) = set(kept.iterdir()) - {whole}
    assert whole.read_bytes() == before
    assert files(kept) == [whole]
    assert f"measurements are kept in {partial}" in err
    assert "Missing: attention, issuing. `tally bench --resume`" in err
    assert main(["bench", "--show", str(partial)]) == 0
    assert "attention, issuing" in capsys.readouterr().out


def test_nothing_is_kept_of_an_interrupted_measurement_with_no_keep(
    monkeypatch: pytest.MonkeyPatch, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, interrupted)
    assert main(["bench", "--no-keep"]) == INTERRUPTED
    assert not kept.exists()
    assert "kept" not in capsys.readouterr().err


def test_a_resumed_measurement_takes_the_place_of_both(
    monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    resumed: list[object] = []

    def measure(device: str, *, is_resumed: bool, **_: object) -> Calibration:
        resumed.append(is_resumed)
        return calibrations.cpu()

    partial = keep(replace(calibrations.cpu(), missing=("issuing",)))
    stand_in(monkeypatch, measure)
    assert main(["bench", "--resume"]) == 0
    assert resumed == [True]
    assert not partial.exists()
    assert len(files(kept)) == 1
    assert main(["bench", "--resume", "--quick"]) != 0
    assert resumed == [True]


@pytest.mark.usefixtures("asked")
def test_elsewhere_and_not_kept(kept: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine.json"
    assert main(["bench", "--no-keep", "-o", str(place)]) == 0
    assert is_same(read(place), calibrations.cpu())
    assert not kept.exists()


@pytest.mark.usefixtures("asked")
def test_json_and_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["bench", "--json", "--html", str(page)]) == 0
    assert (
        json.loads(capsys.readouterr().out)["tables"]["products"]["rows"][0]["dtype"] == "float32"
    )
    assert page.read_text().startswith("<!DOCTYPE html>")


# What was measured before ----------------------------------------------------------------------


def test_show_measures_nothing(
    kept: Path, asked: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    write(calibrations.cpu(), kept / "a.json")
    write(replace(calibrations.gpu(), date="2025-01-01"), kept / "b.json")
    assert main(["bench", "--show"]) == 0
    assert "Some CPU" in capsys.readouterr().out
    assert main(["bench", "--show", "--device", "cuda"]) == 0
    assert calibrations.H100 in capsys.readouterr().out
    assert main(["bench", "--show", "H100-SXM"]) == 0
    assert calibrations.H100 in capsys.readouterr().out
    assert main(["bench", "--show", str(kept / "a.json"), "--json"]) == 0
    assert "Some CPU" in json.loads(capsys.readouterr().out)["title"]
    assert asked == []


def test_show_says_where_it_looked(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--show"]) != 0
    err = capsys.readouterr().err
    assert f"{kept}: none there" in err
    assert "tally bench" in err
    write(calibrations.cpu(), kept / "a.json")
    assert main(["bench", "--show", "--device", "cuda"]) != 0
    assert f"{kept}: a.json" in capsys.readouterr().err


def test_show_of_an_unknown_chip(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--show", "H1000"]) != 0
    assert "H1000" in capsys.readouterr().err


# The estimate ----------------------------------------------------------------------------------


def test_only_this_machines_own_cpu_is_estimated(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("model name: Some CPU @ 2.00GHz\ncpu MHz: 2000\ncore id: 0\nflags: fma\n")
    assert estimated_float32(calibrations.cpu(), file) == 64e9
    assert estimated_float32(calibrations.cpu("Another"), file) is None
    assert estimated_float32(calibrations.gpu(), file) is None
    assert estimated_float32(calibrations.cpu(), tmp_path / "nothing") is None


# The plot of a trace ---------------------------------------------------------------------------


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    from tests.report.test_html import trace

    path = tmp_path / "run.tally"
    trace("train.py").save(path)
    return str(path)


def test_show_draws_a_roofline(
    trace_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["show", trace_file, "--roofline", "--html", str(page)]) == 0
    assert "Roofline of H100-SXM" in capsys.readouterr().out
    assert "Roofline of H100-SXM" in page.read_text()
    assert main(["show", trace_file, "--roofline", "--gpu", "A100-SXM-80GB"]) == 0
    assert "312.00 TFLOP/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more", [["--by", "line"], ["--json"], ["--until", "10"], ["--gpu", "H200", "--gpu", "B200"]]
)
def test_a_roofline_is_a_view_of_its_own(
    trace_file: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", trace_file, "--roofline", *more]) != 0
    assert "--roofline" in capsys.readouterr().err
