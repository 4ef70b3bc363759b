"""`tally audit`: the real run beside the simulated one, as a table and an exit code.

Without a GPU, a second simulated run stands for the real one. Where CUDA_PYTHON names a Python
with a CUDA build of PyTorch (and torchtally's dependencies), the real one is that build's own, on
the stand-in for the driver.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.cli.run_tally import TIMEOUT_S, environment
from tests.memory.test_comparison import GIB, compared, measurement, out_of_memory
from tests.warm import commands, warm
from torchtally.chips import chip
from torchtally.cli import INTERRUPTED, main
from torchtally.report.audit import audit_document as document
from torchtally.report.audit import audit_text as text
from torchtally.report.keys import dumps
from torchtally.runs.measurements import Measurements
from torchtally.runs.protocol import Device, MeasureRequest
from torchtally.trace.measurement import MeasuredLine, Measurement

H100 = chip("H100-SXM")
ROOT = Path(__file__).parents[2]
SCRIPT = """\
import sys
import torch
from torch import nn

width = int(sys.argv[1])
model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    x = torch.randn(1024, width).cuda()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
    if "fail" in sys.argv:
        raise ValueError("bad data")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its runs are in processes that are forked from a warm one."""
    monkeypatch.setattr(sys, "executable", str(commands() / "python"))
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return "train.py"


# The table ----------------------------------------------------------------------------------------


def test_a_prediction_to_the_byte() -> None:
    said = text(compared(measurement(), measurement()), H100, width=80)
    first = " ".join(said.split("\n\n")[0].split())
    assert first.startswith(
        "within tolerance: peak allocated predicted to the byte, peak reserved to the byte "
        "Tolerances: 1.0 % of allocated, 5.0 % of reserved."
    )
    assert "  parameters        5.00 GiB   5.00 GiB     0 B  100.0 %" in said
    assert "train.py:7" in said
    assert "(block remainders)" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_prediction_that_is_off_says_so_first_and_how_far() -> None:
    said = text(compared(measurement(), measurement(8 * GIB, 21 * GIB)), H100, width=80)
    assert " ".join(said.split("\n\n")[0].split()).startswith(
        "OUTSIDE tolerance: peak allocated predicted 20.00% (2.00 GiB) too low, peak reserved "
        "5.00% (1.00 GiB) too high"
    )
    assert "peak allocated is off by more than its tolerance" in " ".join(said.split())
    assert "  peak allocated    10.00 GiB   8.00 GiB  -2.00 GiB   80.0 %" in said


def test_out_of_memory_on_one_side_comes_first() -> None:
    said = text(compared(out_of_memory(measurement()), measurement()), H100, width=80)
    assert said.startswith("OUTSIDE tolerance: it ran out of memory on the GPU alone\n")
    both = compared(out_of_memory(measurement()), out_of_memory(measurement()))
    assert "Both ran out of memory: these are the peaks" in text(both, H100, width=80)


def test_other_moments_and_another_chip_are_remarked_on() -> None:
    predicted = replace(measurement(), peak_step=2, total_memory_bytes=40 * GIB)
    said = " ".join(text(compared(measurement(), predicted), H100, width=80).split())
    assert "The peak is in step 1 on the GPU and in step 2 of the simulation" in said
    assert "The GPU has 80.00 GiB and the simulated one 40.00 GiB" in said


def test_a_history_with_holes_is_remarked_on() -> None:
    predicted = replace(measurement(), lines=())
    said = " ".join(text(compared(measurement(), predicted), H100, width=80).split())
    assert "The allocator's history of the simulated run lacks 10.00 GiB of the peak" in said
    assert "of the real run" not in said


def test_only_the_top_lines_are_shown() -> None:
    many = tuple(MeasuredLine("/home/me/train.py", n, f"x{n}", 100 * GIB - n) for n in range(20))
    said = text(compared(replace(measurement(), lines=many), measurement()), H100, width=80, top=3)
    assert "train.py:2 " in said
    assert "train.py:3 " not in said
    assert "more rows (--top)." in said


def test_the_document_has_the_table_and_both_runs() -> None:
    printed = json.loads(dumps(document(compared(measurement(), measurement(8 * GIB)), H100)))
    assert printed["verdict"] == "outside"
    assert printed["peak_allocated"] == {
        "measured_bytes": 10 * GIB, "predicted_bytes": 8 * GIB, "off_bytes": -2 * GIB, "ratio": 0.8,
    }  # fmt: skip
    assert Measurement.from_json(printed["measured"]) == measurement()


# The command --------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever the tests run, this process is shown no GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        code = main(["audit", script, "64"])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith(
        "tally: error: there is no CUDA GPU here: tally audit runs the script on"
    )
    assert "tally run needs none" in said.err


def test_wrong_command_lines(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 2
    assert "missing script" in capsys.readouterr().err
    assert main(["audit", "nowhere.py"]) == 2
    assert "nowhere.py: no such file" in capsys.readouterr().err
    assert main(["audit", script, "--json", "no/such/folder/x.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["audit", script, "--tolerance", "much"])
    assert left.value.code == 2
    assert main(["audit", "torchrun", "--nproc-per-node=2", script, "8"]) == 2
    assert "Give the script itself: `tally audit train.py 8`." in capsys.readouterr().err


@pytest.fixture
def stand_in_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What should run on a GPU runs on a simulated one, too, with its last argument doubled."""
    native = Measurements.measure

    def measure(runs: Measurements, request: MeasureRequest) -> Measurement:
        if request.gpu is None and "--more" in request.arguments:
            request = structs.replace(request, arguments=("128",))
        if request.gpu is None and "--fail" in request.arguments:
            request = structs.replace(request, arguments=("64", "fail"))
        return native(runs, structs.replace(request, gpu=request.gpu or "H100-SXM"))

    monkeypatch.setattr(Measurements, "measure", measure)
    device = Device("NVIDIA H100 80GB HBM3", H100.total_memory_bytes)
    monkeypatch.setattr(Measurements, "device", lambda runs: device)


@pytest.mark.usefixtures("stand_in_gpu")
def test_within_tolerance_is_exit_code_0(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["audit", script, "64", "--steps", "2", "-o", "both.json", "--json", "audit.json"])
    said = capfd.readouterr()
    assert code == 0
    assert said.out.startswith("within tolerance: peak allocated predicted to the byte")
    assert "train.py:6" in said.out
    assert "tally: 2 training steps on the GPU\n" in said.err
    both = json.loads(Path("both.json").read_text())
    assert both["measured"] == both["predicted"]
    assert json.loads(Path("audit.json").read_text())["verdict"] == "within"


@pytest.mark.usefixtures("stand_in_gpu")
def test_outside_tolerance_is_exit_code_1(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["audit", script, "64", "--more", "--steps", "1", "--json", "-", "--quiet"])
    said = capsys.readouterr()
    loaded = json.loads(said.out)
    assert (code, loaded["verdict"], said.err) == (1, "outside", "")
    assert loaded["held"]["parameters"]["ratio"] == pytest.approx(1 / 4, rel=0.05)  # width squared


@pytest.mark.usefixtures("stand_in_gpu")
def test_a_script_that_fails_is_not_run_again(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", script, "64", "--fail"]) == 2
    said = capsys.readouterr()
    assert said.out == "nothing to compare: the script failed\n  On the GPU: ValueError: bad data\n"
    assert "simulated" not in said.err


@pytest.mark.usefixtures("stand_in_gpu")
def test_an_unknown_gpu_needs_a_name(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Measurements, "device", lambda runs: Device("NVIDIA H100 80GB PCIex", 80 * GIB)
    )
    assert main(["audit", script, "64"]) == 2
    said = capsys.readouterr().err
    assert "this machine's GPU, with 80.00 GiB, is not in the table" in said
    assert "H100-PCIe" in said
    assert "--gpu NAME" in said


STAND_IN = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from torchtally.cli import main
from msgspec.structs import replace
from torchtally.runs.measurements import Measurements
from torchtally.runs.protocol import Device
native = Measurements.measure
Measurements.measure = lambda runs, request: native(runs, replace(request, gpu="H100-SXM"))
Measurements.device = lambda runs: Device("NVIDIA H100 80GB HBM3", 80 << 30)
sys.exit(main())
"""


def test_ctrl_c_ends_the_run_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    )
    process = subprocess.Popen(
        warm(STAND_IN, "audit", "--writes", "real", "train.py"),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = tmp_path / "pid"
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (INTERRUPTED, "")
    assert stderr.endswith("tally: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


# On the stand-in for the driver -------------------------------------------------------------------

CUDA_PYTHON = os.environ.get("CUDA_PYTHON", "")
on_stand_in = pytest.mark.skipif(
    not CUDA_PYTHON, reason="CUDA_PYTHON names no Python with a CUDA build of PyTorch"
)


def audit(*arguments: str, driver: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """`tally audit` under the CUDA build, its GPU a stand-in that computes nothing."""
    command = [sys.executable, "-m", "tests.truth.driver", "--python", CUDA_PYTHON, *driver]
    return subprocess.run(
        [*command, "--", "-m", "torchtally", "audit", *arguments],
        cwd=ROOT, env=environment() | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True,
        text=True, timeout=5 * TIMEOUT_S, check=False,
    )  # fmt: skip


@on_stand_in
@pytest.mark.parametrize("options", [(), ("--checkpoint", "--dropout", "0.1")])
def test_a_gpt_is_predicted_to_the_byte(options: tuple[str, ...], tmp_path: Path) -> None:
    both = tmp_path / "both.json"
    done = audit("--steps", "2", "-o", str(both), "examples/train_gpt.py", "--layers", "2",
                 "--batch-size", "4", "--log-every", "1", *options)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(
        "within tolerance: peak allocated predicted to the byte, peak reserved to the\n  byte\n"
    )
    assert done.stderr.count("step 1: loss") == 1  # of the real run
    runs = json.loads(both.read_text())
    assert {key: runs["measured"][key] for key in ("steps", "held", "lines")} == {
        key: runs["predicted"][key] for key in ("steps", "held", "lines")
    }


@on_stand_in
def test_another_chips_kernels_are_not_this_ones(tmp_path: Path) -> None:
    """A T4's cuBLAS takes a smaller workspace."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = audit("--gpu", "T4", "--steps", "2", str(tmp_path / "train.py"), "1024")
    assert done.returncode == 1
    assert done.stdout.startswith("OUTSIDE tolerance: peak allocated predicted ")


@on_stand_in
def test_memory_that_ends_there_and_not_here(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = audit("--gpu", "H100-SXM", "--steps", "2", str(tmp_path / "train.py"), "4096",
                 driver=("--memory", "1500000000"))  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.startswith("OUTSIDE tolerance: it ran out of memory on the GPU alone\n")
