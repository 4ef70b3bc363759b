"""The contract with the script: `tally run script.py` is `python script.py`, plus a report."""

import dataclasses
import hashlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.run_tally import (
    END,
    GPU,
    SCRIPTS,
    SHORT_GRACE,
    TALLY,
    TIMEOUT_S,
    Run,
    command,
    ending,
    environment,
    finish,
    is_verdict,
    start,
    tally_run,
)
from tests.warm import warm
from torchtally.cli import main, parser
from torchtally.cli.declared import asked
from torchtally.cli.run_options import RunOptions
from torchtally.cli.streams import is_interrupt
from torchtally.trace import Ending, Trace, Use
from torchtally.units import parse_bytes

pytestmark = pytest.mark.one_case_in(2)

H100 = ("--gpu", GPU)

# As under python ---------------------------------------------------------------------------------


def test_stdout_is_that_of_python_to_the_last_byte(tmp_path: Path) -> None:
    """argv, path, `__main__`, pickling, stdin, a lot of output; also from a strange place."""
    home, away = tmp_path / "späce & ünicode", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    shutil.copy(SCRIPTS / "facts.py", home / "träin.py")
    (away / "link.py").symlink_to(home / "träin.py")
    theirs = [sys.executable, "link.py", "--device=cpu", "wörd", "--", "--quiet", "--steps"]
    ours = command("-oout.tally", "--steps=9", "link.py", "--device=cpu", "--json", "out.json",
                   "wörd", "--quiet", "--", "--", "--quiet", "--steps")  # fmt: skip
    by_python, by_tally = (
        subprocess.run(
            each, cwd=away, input=b"a line\nand no end", capture_output=True,
            env=environment(), timeout=TIMEOUT_S, check=True,
        )
        for each in (theirs, ours)
    )  # fmt: skip
    assert by_tally.stdout[:1500] == by_python.stdout[:1500]
    assert hashlib.sha256(by_tally.stdout).digest() == hashlib.sha256(by_python.stdout).digest()
    assert by_tally.stderr == by_python.stderr == b"INFO:root:done\n"
    # The script went to another directory, and the results did not.
    assert sorted(os.listdir(away)) == ["link.py", "out.json", "out.tally"]


MAIN = """\
import os, pickle, sys
class Point: pass
print(sys.argv, __name__, __file__, __package__, sys.path[0], __spec__ and __spec__.name)
print(type(pickle.loads(pickle.dumps(Point()))) is Point, sys.modules["__main__"].Point is Point)
"""


@pytest.mark.thorough
def test_modules_directories_and_archives(tmp_path: Path) -> None:
    package = tmp_path / "space" / "package"
    package.mkdir(parents=True)
    (package / "train.py").write_text(MAIN)
    (package / "__main__.py").write_text(MAIN)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", MAIN)
    for arguments in (["-m", "space.package.train", "-m", "x"], ["space/package", "-h"],
                      ["app.zip", "--lr", "1"]):  # fmt: skip
        python = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True,
            env=environment(), timeout=TIMEOUT_S,
        )  # fmt: skip
        assert tally_run(*arguments, cwd=tmp_path).stdout == python.stdout


@pytest.mark.thorough
def test_children_are_processes_of_their_own(tmp_path: Path) -> None:
    run = tally_run(str(SCRIPTS / "processes.py"), cwd=tmp_path)
    # Python 3.12 warns of a fork in a process with threads, of which torch starts some.
    said = re.sub(r".*DeprecationWarning: .* use of fork\(\) .*\n.*\n", "", run.said_by_script)
    assert said == ""
    loaded = "loaded (2, 3) True cuda:0"
    assert sorted(run.stdout.splitlines()) == sorted([
        "child 5 __mp_main__", "child 5 __main__", "child 6 __main__",
        "spawn ended 5", "spawn gave 6", f"spawn {loaded}", f"spawn {loaded}",
        "fork ended 5", "fork ended 6", "fork gave 6", f"fork {loaded}", f"fork {loaded}",
        f"terminated {-signal.SIGTERM}", "forked 9",
    ])  # fmt: skip
    assert run.code == 0
    assert sum(map(is_verdict, run.stderr.splitlines())) == 1
    assert len(run.trace.step_ends) == 1


# Endings -----------------------------------------------------------------------------------------


def test_sys_exit_after_threads_and_exit_handlers(tmp_path: Path) -> None:
    run = ending("by_number", cwd=tmp_path)
    assert (run.code, run.trace.ending) == (3, Ending("exit", "sys.exit(3)"))
    assert run.stdout == "thread\nhandler cuda:0\n"
    assert run.trace.sites[run.trace.ops[-1].site].line.function == "by_number.<locals>.<lambda>"


def test_sys_exit_with_a_text(tmp_path: Path) -> None:
    run = ending("by_text", cwd=tmp_path)
    assert (run.code, run.stdout) == (1, "no data\n")  # the script's stderr is its stdout
    assert run.trace.ending.message == "sys.exit('no data')"
    assert run.said_by_script == ""


def test_an_exception_is_shown_without_our_frames(tmp_path: Path) -> None:
    run = ending("by_exception", cwd=tmp_path)
    assert (run.code, run.trace.ending.kind) == (1, "exception")
    assert len(run.trace.step_ends) == 1
    shown = run.said_by_script
    assert "torchtally" not in shown
    assert [name for _, name in re.findall(r'File "(.*)", line \d+, in (.*)', shown)] == [
        "by_exception", "by_exception", "<module>", "by_exception"
    ]  # fmt: skip
    errors = ["RuntimeError", "ValueError", "RuntimeError"]
    assert re.findall(r"^(\w+Error): ", shown, re.M) == errors
    assert shown.count("Traceback (most recent call last):") == 3
    assert shown.rstrip().endswith(run.trace.ending.message)


def test_unknown_columns_are_refused_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, trace = tmp_path / "script.py", tmp_path / "run.tally"
    script.write_text("import pathlib; pathlib.Path('ran').touch()\n")
    arguments = [
        "run",
        str(script),
        "--gpu",
        "H100-SXM",
        "-o",
        str(trace),
        "--columns",
        "bytes_rad",
    ]
    assert main(arguments) == 2
    assert "--columns bytes_rad: unknown. Did you mean bytes_read" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert not trace.exists()


def test_chosen_columns_of_the_report(tmp_path: Path) -> None:
    run = ending("by_exception", "--columns", "bytes_read,count", cwd=tmp_path)
    head = run.stderr[run.stderr.index("By phase") :].splitlines()[1]
    assert head.split() == ["phase", "read", "ops"]


def test_a_syntax_error_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = (\n")
    run = tally_run("broken.py", cwd=tmp_path)
    assert run.code == 1
    assert run.said_by_script.startswith(f'  File "{tmp_path}/broken.py", line 2\n    y = (\n')
    assert run.said_by_script.endswith("SyntaxError: '(' was never closed\n")


def test_os_exit_reports_first(tmp_path: Path) -> None:
    run = ending("by_os_exit", cwd=tmp_path)
    assert (run.code, run.stdout) == (7, "")
    assert run.trace.ending == Ending("exit", "os._exit(7)")
    assert len(run.trace.step_ends) == 1


def test_a_script_that_ends_too_early(tmp_path: Path) -> None:
    run = ending("by_itself", "--steps", "5", cwd=tmp_path)
    assert (run.code, run.trace.ending) == (0, Ending("exit"))
    assert len(run.trace.step_ends) == 1
    assert run.said_by_script == ""


def test_a_script_that_never_steps(tmp_path: Path) -> None:
    run = ending("without_optimizer", cwd=tmp_path)
    assert (run.code, run.trace.step_ends) == (0, ())
    assert "ended by itself before a training step" in run.stderr


@pytest.mark.parametrize("name", ["swallowing", "swallowing_without_steps", "wrapped"])
def test_a_script_that_swallows_the_stop_is_stopped(name: str, tmp_path: Path) -> None:
    run = ending(name, cwd=tmp_path, setup=SHORT_GRACE)
    assert (run.code, run.trace.ending) == (0, Ending("steps"))
    assert run.said_by_script == ""


def test_training_in_a_thread_ends_the_script(tmp_path: Path) -> None:
    run = ending("in_a_thread", "--steps", "3", cwd=tmp_path)
    assert (run.code, run.trace.ending) == (0, Ending("steps"))
    assert len(run.trace.step_ends) == 3
    assert run.said_by_script == ""
    assert re.findall(r"^tally: step (\d/3), \d+ operators", run.stderr, re.M) == [
        "1/3", "2/3", "3/3"
    ]  # fmt: skip


# Signals and time --------------------------------------------------------------------------------


def signalled(name: str, *numbers: int, cwd: Path, setup: str = "") -> Run:
    """A script that says "ready" when it is ready for a signal."""
    process = start(str(SCRIPTS / "endings.py"), name, cwd=cwd, setup=setup)
    assert process.stdout
    said = ""
    for number in numbers:
        while not (line := process.stdout.readline()).startswith("ready"):
            said += line
            assert line, "the script ended before it was ready"
        process.send_signal(number)
    run = finish(process, cwd)
    return dataclasses.replace(run, stdout=said + run.stdout)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_is_reported_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    run = signalled("told", number, cwd=tmp_path)
    assert (run.code, run.stdout) == (code, "cleaned up\n")
    assert run.trace.ending == Ending("interrupted", number.name)
    assert len(run.trace.step_ends) == 1
    assert run.said_by_script == ""


def test_the_second_interrupt_ends_the_cleaning_up(tmp_path: Path) -> None:
    run = signalled("told_and_deaf", signal.SIGINT, signal.SIGINT, cwd=tmp_path)
    assert (run.code, run.stdout) == (130, "cleaned up\n")
    assert run.trace.ending == Ending("interrupted", "SIGINT")


def test_the_second_interrupt_ends_the_report(tmp_path: Path) -> None:
    slow = "import time, torchtally.files.atomic as f; f.sync_directory = lambda _: hang()\n"
    hang = "def hang():\n    print('ready', flush=True)\n    time.sleep(600)\n"
    run = signalled("told", signal.SIGINT, signal.SIGINT, cwd=tmp_path, setup=slow + hang)
    assert run.code == 130
    assert run.stderr.endswith("tally: interrupted\n")


@pytest.mark.parametrize("swallows", [False, True])
def test_an_interrupt_while_starting_ends_it_though_an_import_swallows_it(
    swallows: bool, tmp_path: Path
) -> None:
    handler = "except KeyboardInterrupt: pass" if swallows else "finally: pass"
    hang = f"""
import time, torchtally.tracer.launchers as launchers
native = launchers.launch_of
def hang(script):
    print('ready', flush=True)
    try:
        time.sleep(600)
    {handler}
    return native(script)
launchers.launch_of = hang
"""
    process = start(str(SCRIPTS / "endings.py"), "told", cwd=tmp_path, setup=hang)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith("tally: interrupted while starting: the script has not run\n")
    assert not (tmp_path / "run.tally").exists()


def test_ctrl_c_as_a_class_is_made_is_an_interrupt() -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises((RuntimeError, KeyboardInterrupt)) as raised:
        type("Owner", (), {"field": Interrupted()})
    assert is_interrupt(raised.value)
    assert not is_interrupt(RuntimeError("another"))


def test_the_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    run = signalled("told_and_deaf", signal.SIGTERM, signal.SIGTERM, cwd=tmp_path)
    assert run.code == -signal.SIGTERM
    assert not run.file.exists()


def test_a_script_handles_its_own_signals(tmp_path: Path) -> None:
    run = signalled("own_handler", signal.SIGTERM, cwd=tmp_path)
    assert (run.code, run.stdout) == (4, "handled 15\ncleaned up\n")
    assert run.trace.ending == Ending("exit", "sys.exit(4)")


@pytest.mark.parametrize(
    "name", ["own_handler_in_a_finalizer", "own_handler_when_an_optimizer_ends"]
)
def test_a_script_handles_a_signal_that_arrives_in_a_finalizer(name: str, tmp_path: Path) -> None:
    run = ending(name, cwd=tmp_path)
    assert (run.code, run.stdout, run.said_by_script) == (4, "handled 15\n", "")


def test_a_signal_is_not_lost_in_a_finalizer(tmp_path: Path) -> None:
    run = ending("told_in_a_finalizer", cwd=tmp_path)
    assert (run.code, run.said_by_script) == (143, "")
    assert run.trace.ending == Ending("interrupted", "SIGTERM")


def test_an_interrupt_is_not_lost_where_python_calls_a_finalizer(tmp_path: Path) -> None:
    run = ending("interrupted_in_a_finalizer", cwd=tmp_path)
    assert (run.code, run.said_by_script) == (130, "")
    assert run.trace.ending == Ending("interrupted", "SIGINT")


@pytest.mark.parametrize("name", ["waiting", "told_and_deaf_to_all", "own_handler"])
def test_no_time_left(name: str, tmp_path: Path) -> None:
    run = ending(name, "--max-seconds", "0.5", cwd=tmp_path, setup=SHORT_GRACE)
    assert run.code == 124
    assert run.trace.ending == Ending("time", "stopped after 0.5 s (--max-seconds)")
    assert run.said_by_script == ""


WAITING = """\
import torch
error = torch.randn(1 << 20, device="cuda")
while not error.abs().max() < 1e-3:
    error = error / 2
"""


def test_a_loop_that_waits_for_a_value_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "solve.py").write_text(WAITING)
    run = tally_run("--placeholder-limit", "50", "solve.py", cwd=tmp_path)
    assert run.code == 1
    (last, remedy) = run.said_by_script.splitlines()[-2:]
    assert last == (
        f"torchtally.errors.EndlessLoopError: {tmp_path}/solve.py:3: "
        "`while not error.abs().max() < 1e-3:` asked 50 times without a training step in between "
        "for a value that does not exist on the virtual GPU, and was given False each time: the "
        "loop may never end."
    )
    assert remedy.endswith("or allow more reads: --placeholder-limit N.")
    (placeholder,) = run.trace.placeholders
    assert (placeholder.use, placeholder.count) == (Use.BRANCH, 50)
    assert run.trace.ending.kind == "exception"
    assert "(branch: aten._local_scalar_dense gave False" in " ".join(run.stderr.split())


# Where it is written -----------------------------------------------------------------------------


def test_nobody_reads_stdout(tmp_path: Path) -> None:
    """`tally run script.py | head -1`, and the report is there all the same."""
    process = start("--steps", "9", str(SCRIPTS / "facts.py"), cwd=tmp_path)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read() if process.stderr else ""
    assert process.wait(TIMEOUT_S) == 141
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr
    assert any(map(is_verdict, stderr.splitlines()))
    assert Trace.load(tmp_path / "run.tally").ending.message.startswith("BrokenPipeError")


def test_two_runs_into_one_file(tmp_path: Path) -> None:
    processes = [start(str(SCRIPTS / "endings.py"), "by_itself", cwd=tmp_path) for _ in range(2)]
    runs = [finish(process, tmp_path) for process in processes]
    assert [run.code for run in runs] == [0, 0]
    assert len(runs[0].trace.step_ends) == 1
    assert os.listdir(tmp_path) == ["run.tally"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is full")
def test_a_full_disk_does_not_swallow_the_report(tmp_path: Path) -> None:
    run = ending("by_os_exit", "-o", "/dev/full", cwd=tmp_path)
    assert run.code == 1
    assert any(map(is_verdict, run.stderr.splitlines()))
    last = run.stderr.rstrip().splitlines()[-2:]
    assert last[0].startswith("tally: error: /dev/full: ")
    assert "No space left on device" in last[0]


@pytest.mark.thorough
def test_the_line_on_a_terminal_makes_way_for_the_script(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    often = "import torchtally.report.run_progress as progress; progress.INTERVAL_S = 0.001\n"
    process = subprocess.Popen(
        command(str(SCRIPTS / "endings.py"), "terminal", "--steps", "9", setup=often,
                    is_warm=False),
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment(),
    )  # fmt: skip
    os.close(theirs)
    written = everything(ours).replace("\r\n", "\n")
    written = re.sub(r"^tally: PyTorch .*\n", "", written, flags=re.M)  # of another release
    assert process.wait(TIMEOUT_S) == 0
    assert re.search(r"\r\x1b\[Ktally: step 1/9, \d+ operators, peak 64.00 MiB, ", written)
    seen = re.sub(r"[^\n]*\r\x1b\[K", "", written).split("\n")
    lines = ["step {}", "a prompt: answered", "\r 10 %\r 100 %"]
    assert seen[:6] == [line.format(number) for number in (0, 1) for line in lines]
    assert "fits H100-SXM" in seen[6]
    assert "tally: step" not in "".join(seen)


def everything(terminal: int) -> str:
    written = b""
    while True:
        try:
            written += os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody has the other end open any more
            return written.decode()


OFTEN = """\
import torchtally.progress as progress, torchtally.report.run_progress as run_progress
progress.SPARSE_S = run_progress.INTERVAL_S = 0.01
"""
BUILDING = """\
import time, torch
layers = []
for _ in range(20):
    layers.append(torch.nn.Linear(4096, 4095))
    time.sleep(0.01)
print("built")
"""


def test_a_model_is_seen_being_built(tmp_path: Path) -> None:
    """On the host: each layer is a weight of 4096 x 4095 floats, 64 MiB less 16 KiB."""
    (tmp_path / "train.py").write_text(BUILDING)
    run = tally_run("train.py", cwd=tmp_path, setup=OFTEN)
    assert run.stdout == "built\n"
    seen = re.findall(r"^tally: before step 1, (\d+) operators, (.* [MG]iB), ", run.stderr, re.M)
    assert len(seen) > 1
    assert int(seen[-1][0]) > int(seen[0][0])
    sizes_bytes = [parse_bytes(size) for _, size in seen]
    largest_bytes = max(sizes_bytes)
    while_built = sizes_bytes[: sizes_bytes.index(largest_bytes) + 1]  # then it is freed
    assert while_built == sorted(while_built)
    assert 63 << 20 < largest_bytes <= 20 << 26


def test_nobody_sees_it_who_asked_for_quiet(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BUILDING)
    run = tally_run("--quiet", "train.py", cwd=tmp_path, setup=OFTEN)
    assert (run.stdout, run.stderr) == ("built\n", "")


# The chip ----------------------------------------------------------------------------------------


STEP = "import torch\ntorch.ones(2, device='cuda').add_(1)\nprint(torch.cuda.get_device_name())\n"


@pytest.mark.parametrize(
    ("arguments", "variable", "said", "chip"),
    [
        ([], "", "tally: no --gpu: H100-SXM (80 GB); another by --gpu NAME or TALLY_GPU=NAME\n",
         "NVIDIA H100 80GB HBM3"),
        ([], "RTX-4090", "tally: no --gpu: RTX-4090, by TALLY_GPU\n", "NVIDIA GeForce RTX 4090"),
        ([], "4090", "tally: no --gpu: 4090, by TALLY_GPU\n"
         "tally: 4090: taken as RTX-4090 (24 GB)\n", "NVIDIA GeForce RTX 4090"),
        (["--gpu", "A100"], "RTX-4090", "tally: A100: taken as A100-SXM (80 GB); others: "
         "A100-PCIe-40GB, A100-PCIe, A100-SXM-40GB\n", "NVIDIA A100-SXM4-80GB"),
        (["--gpu", "T4"], "RTX-4090", "", "Tesla T4"),
    ],
)  # fmt: skip
def test_the_chip_that_is_simulated_is_said_unless_named(
    arguments: list[str], variable: str, said: str, chip: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STEP)
    done = subprocess.run(
        warm(TALLY + END, "run", *arguments, "train.py"), cwd=tmp_path, capture_output=True,
        text=True, env=environment() | {"TALLY_GPU": variable}, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == chip
    notes = [line for line in done.stderr.splitlines(keepends=True) if ": taken as" in line
             or ": no --gpu" in line]  # fmt: skip
    assert "".join(notes) == said


def test_quiet_runs_take_the_default_chip_in_silence(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEP)
    done = subprocess.run(
        warm(TALLY + END, "run", "--quiet", "train.py"), cwd=tmp_path, capture_output=True,
        text=True, env=environment(), timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("NVIDIA H100 80GB HBM3", "")


# Mistakes ----------------------------------------------------------------------------------------


def status(*arguments: str) -> int:
    """The exit status of `tally run`, in this process: nothing is run."""
    try:
        return main(["run", *arguments])
    except SystemExit as exit_:
        return int(exit_.code or 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["none.py", *H100], "none.py: no such file"),
        (["directory", *H100], "directory is a directory without a __main__.py"),
        (["-m", "nobody.train", *H100], "no module named 'nobody.train'"),
        (["-m", "email", *H100], "email is a package without a __main__"),
        (["train.py", "--gpu", "H10"], "H100-SXM"),
        (["train.py", "--gpu", "TPU-v5p"], "TPU-v5p is not a CUDA device"),
        (["train.py", "--gpu"], "--gpu: expected one argument"),
        ([*H100], "missing script"),
        ([*H100, "--"], "missing script"),
        ([*H100, "--unknown", "train.py"], "unknown option --unknown."),
        ([*H100, "-x", "train.py"], "unknown option -x."),
        ([*H100, "train.py", "--steps", "0"], "--steps: '0' is not above 0"),
        ([*H100, "train.py", "--steps", "abc"], "--steps: 'abc' is not a count"),
        ([*H100, "--steps", "2", "train.py", "--steps", "500"], "--steps is given twice"),
        ([*H100, "train.py", "--max-seconds", "0"], "--max-seconds: '0s' is not above 0"),
        ([*H100, "train.py", "--max-seconds", "x"], "--max-seconds: 'x' is not"),
        (
            [*H100, "train.py", "--nonzero-fraction", "2"],
            "--nonzero-fraction: '2' is not between 0 and 1",
        ),
        ([*H100, "train.py", "--placeholder-limit", "0"], "--placeholder-limit: '0' is not above"),
        ([*H100, "train.py", "-o", "directory"], "directory: cannot be written, it is a directory"),
        ([*H100, "train.py", "-o", "none/x.tally"], "none/x.tally: cannot be written, there is no"),
        ([*H100, "train.py", "--json", "directory"], "Choose another with --json"),
        ([*H100, "train.py", "-o", "/proc/x.tally"], "/proc/x.tally: cannot be written"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_lost(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    (tmp_path / "train.py").write_text("raise AssertionError('this script is never run')")
    (tmp_path / "run.tally").write_text("torchtally trace from before")
    assert status(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err
    assert "Traceback" not in err
    assert (tmp_path / "run.tally").read_text() == "torchtally trace from before"
    assert sorted(os.listdir(tmp_path)) == ["directory", "run.tally", "train.py"]


def parsed(*arguments: str) -> tuple[str, list[str]]:
    options = asked(RunOptions, parser(["run"]).parse_args(["run", "--gpu", GPU, *arguments]))
    return options.script, list(options.script_arguments)


def test_whose_arguments_are_whose() -> None:
    assert parsed("t.py", "-a", "--b=c", "d", "--quiet") == ("t.py", ["-a", "--b=c", "d"])
    assert parsed("--", "t.py", "--steps", "5") == ("t.py", ["--steps", "5"])
    assert parsed("--steps=3", "t.py", "--", "--steps", "5") == ("t.py", ["--steps", "5"])
    assert parsed("t.py", "--", "a", "--", "b") == ("t.py", ["a", "--", "b"])
    assert parsed("t.py", "-h", "--help", "-m", "x") == ("t.py", ["-h", "--help", "-m", "x"])
    assert parsed("t.py", "-optimizer", "adam") == ("t.py", ["-optimizer", "adam"])
    assert parsed("-ox.tally", "t.py") == ("t.py", [])
    assert parsed("-m", "p.t", "a", "-m", "b") == ("", ["a", "-m", "b"])
    assert parsed("-mp.t", "--max-seconds", "9", "a") == ("", ["a"])
    assert parsed("-m", "p.t", "--", "--steps", "1") == ("", ["--steps", "1"])


def test_compile_behind_the_script_is_the_scripts(tmp_path: Path) -> None:
    """nanoGPT and others have one of their own, which they read by a file of theirs."""
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    run = tally_run("train.py", "--compile=False", "--batch_size=32", cwd=tmp_path)
    assert "['--compile=False', '--batch_size=32']" in run.stdout
