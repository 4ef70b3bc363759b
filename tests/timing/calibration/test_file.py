"""Calibrations on disk: what was written is read, and nothing else is."""

import json

import pytest
from msgspec.structs import replace

from tests.timing.calibration.machines import H100, HOST
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.timing.calibration.file import read, write
from torchtally.timing.calibration.library import SHIPPED, keep, of_chip, of_host
from torchtally.timing.targets import known_roofline, roofline, target


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "deep" / "mine.json"
    write(HOST, path)
    assert read(path) == HOST


def test_a_line_for_each_sample(tmp_path):
    path = tmp_path / "mine.json"
    write(HOST, path)
    lines = path.read_text().splitlines()
    assert sum("aten." in line for line in lines) == len(HOST.samples)


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_file_cut_short_is_refused(tmp_path, length):
    path = tmp_path / "mine.json"
    write(HOST, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UsageError, match=r"mine\.json: not a calibration.*\n.*tally bench"):
        read(path)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("format", 99, "format 99"),
        ("peak_flop_per_s", {"float32": -1.0}, "is implausible"),
        ("peak_flop_per_s", {"bfloat16": 1.0}, "lacks float32"),
        ("bandwidth_bytes_per_s", 0.0, "is implausible"),
        ("first_touch_s_per_byte", -1.0, "issue"),
        ("memory_bytes", "many", "memory_bytes"),
        ("speed", 3, "speed"),
    ],
)
def test_what_nobody_can_have_measured_is_refused(tmp_path, key, value, complaint):
    path = tmp_path / "mine.json"
    write(HOST, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UsageError, match=complaint):
        read(path)


def test_a_sample_that_took_no_time_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    write(HOST, path)
    loaded = json.loads(path.read_text())
    loaded["samples"][1][1] = 0.0
    path.write_text(json.dumps(loaded))
    with pytest.raises(UsageError, match=r"samples: 2 \(aten\.mm\)"):
        read(path)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Empty, and nothing shipped."""
    monkeypatch.setenv("TALLY_CALIBRATIONS", str(tmp_path))
    monkeypatch.setattr("torchtally.timing.calibration.library.SHIPPED", tmp_path / "none")
    return tmp_path


def test_without_a_calibration_a_cpu_is_not_known(library):
    assert of_host() is None
    assert known_roofline("cpu") is None
    with pytest.raises(UsageError, match="tally bench"):
        target("cpu")


def test_a_measured_cpu_is_a_chip(library):
    keep(HOST)
    cpu = target("cpu")
    assert (cpu.vendor, cpu.device_name) == ("CPU", "Some CPU @ 1.00GHz")
    assert cpu.peak_flop_per_s("float32") == 2e11
    assert roofline("CPU").is_host


def test_the_last_one_of_a_cpu_counts(library):
    keep(replace(HOST, date="2026-11-22", threads=4))
    keep(HOST)
    on_host = of_host()
    assert on_host is not None
    assert on_host.threads == 4


def test_what_was_shipped_is_for_cpus_of_the_same_name(library, monkeypatch):
    write(HOST, library / "none" / "some.json")
    assert of_host() is None
    monkeypatch.setattr(
        "torchtally.timing.calibration.library.processor_name", lambda: "Some CPU @ 1.00GHz"
    )
    assert of_host() == HOST


def test_whatever_is_shipped_can_be_read():
    for path in SHIPPED.glob("*.json"):
        calibration = read(path)
        assert calibration.device
        assert calibration.date
        assert len(calibration.samples) > (100 if calibration.reach else 1000)


def test_a_gpus_calibration_is_its_chips_alone(library):
    keep(H100)
    assert of_chip(chip("H100-SXM")) == H100
    assert of_chip(chip("A100-SXM-80GB")) is None
    assert of_host() is None


def test_another_format_concerns_its_device_alone(library):
    keep(HOST)
    (path,) = library.glob("*.json")
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    assert of_chip(chip("H100-SXM")) is None
    with pytest.raises(UsageError, match="format 1; this version reads format 2"):
        of_host()


def test_a_broken_calibration_is_not_passed_over(library):
    (library / "broken.json").write_text("{}")
    with pytest.raises(UsageError, match=r"broken\.json"):
        of_chip(chip("H100-SXM"))
    for name in ("H100-SXM", "cpu"):
        with pytest.raises(UsageError, match=r"broken\.json"):
            known_roofline(name)
    assert known_roofline("no such chip") is None
