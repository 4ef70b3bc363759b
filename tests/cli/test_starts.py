"""Every form of script that Python starts, its own options, and no exit code 0 for nothing."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run_tally import TIMEOUT_S, Run, command, environment, tally_run
from torchtally.cli.arguments import RunParser, ignores_option
from torchtally.trace import Ending

pytestmark = pytest.mark.one_case_in(3)

STEP = """\
import sys, torch
model = torch.nn.Linear(4, 4, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4, device="cuda")).sum().backward()
optimizer.step()
print(sys.argv, __name__, sys.path[0] == "", "__file__" in globals())
"""
"""One training step; the forward pass in line 4."""


def lines_of(run: Run) -> set[str]:
    """Where the operators of a run come from: "train.py:4"."""
    trace = run.trace
    frames = (trace.sites[op.site].line for op in trace.ops)
    return {f"{Path(frame.file).name}:{frame.line}" for frame in frames if frame is not None}


def run_script(text: str, *arguments: str, cwd: Path) -> Run:
    (cwd / "train.py").write_text(text)
    return tally_run("train.py", *arguments, cwd=cwd)


# Forms -------------------------------------------------------------------------------------------


def test_code_of_the_command_line(tmp_path: Path) -> None:
    run = tally_run("-c", STEP, "-c", "x", cwd=tmp_path)
    assert run.code == 0, run.stderr
    assert run.stdout == "['-c', '-c', 'x'] __main__ True False\n"
    assert "-c:4" in lines_of(run)
    assert run.trace.script == "-c -c x"


def test_code_on_stdin(tmp_path: Path) -> None:
    done = subprocess.run(
        command("-", "x"), input=STEP, capture_output=True, text=True, cwd=tmp_path,
        env=environment(), timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    run = Run(done.returncode, done.stdout, done.stderr, tmp_path / "run.tally")
    assert run.stdout == "['-', 'x'] __main__ True False\n"
    assert "stdin:4" in lines_of(run)


def test_compiled_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEP)
    compiler = "import py_compile; py_compile.compile('train.py', cfile='train.pyc')"
    subprocess.run([sys.executable, "-c", compiler], cwd=tmp_path, check=True)
    run = tally_run("train.pyc", cwd=tmp_path)
    assert run.stdout == "['train.pyc'] __main__ False True\n"
    assert "train.py:4" in lines_of(run)


INSTALLED = STEP.replace("print(", "def main(): pass\nprint(")
ELSEWHERE = "import tools.layers\n" + INSTALLED.replace("model(", "tools.layers.call(model, ")
COMMAND = "#!/usr/bin/env python\nimport sys\nfrom trainer.cli import main\nsys.exit(main())\n"


@pytest.mark.parametrize(
    "words", ["-m trainer.cli", "bin/train", "train", "torchrun -m trainer.cli"]
)
def test_an_installed_package_is_the_users_own_where_it_is_what_runs(
    words: str, tmp_path: Path
) -> None:
    """As a module, by the command that it installs (its path or name), or behind a launcher; others
    stay libraries.
    """
    site = tmp_path / "lib" / "site-packages"
    files = {
        site / "trainer" / "__init__.py": "",
        site / "trainer" / "cli.py": ELSEWHERE,
        site / "tools" / "__init__.py": "",
        site / "tools" / "layers.py": "def call(model, x):\n    return model(x)\n",
        site / "trainer-1.dist-info" / "METADATA": "Name: trainer\nVersion: 1\n",
        site
        / "trainer-1.dist-info"
        / "entry_points.txt": "[console_scripts]\ntrain = trainer.cli:main\n",
        tmp_path / "bin" / "train": COMMAND,
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    python = str(tmp_path / "bin" / "python")
    setup = f"sys.executable = {python!r}; sys.path.append({str(site)!r})\n"
    run = tally_run(*words.split(), cwd=tmp_path, setup=setup)
    assert run.code == 0, run.stderr
    sites = run.trace.sites
    frames = {(frame.file, frame.is_own) for site in sites for frame in site.frames}
    assert frames - {(str(tmp_path / "bin" / "train"), True)} == {
        (str(site / "trainer" / "cli.py"), True),
        (str(site / "tools" / "layers.py"), False),
    }
    assert "cli.py:5" in lines_of(run)


def notebook(*cells: str) -> str:
    """A notebook with a text and these cells of code."""
    kinds: list[dict[str, Any]] = [{"cell_type": "markdown", "source": ["# Text"]}]
    kinds += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": kinds})


def test_a_notebook_runs_its_cells(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(
        notebook(
            "%matplotlib inline\n!pip install \\\n  torch\nimport torch",
            "%%time\nremainder = (17\n  % 5)\nif True:\n    !nvidia-smi",
            "%%bash\nexit 1",
            f"{STEP}print(remainder)",
        )
    )
    run = tally_run("train.ipynb", cwd=tmp_path)
    assert run.code == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "2"
    assert "cell 4:4" in lines_of(run)
    left_out = [line for line in run.stderr.splitlines() if "only IPython runs it" in line]
    assert [line.partition(" was")[0].removeprefix("tally: note: ") for line in left_out] == [
        "cell 1, line 1", "cell 1, line 2", "cell 2, line 1", "cell 2, line 5", "cell 3, line 1",
    ]  # fmt: skip


@pytest.mark.thorough
def test_an_error_in_a_cell_names_cell_and_line(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("x = 1", "\nx.y"))
    run = tally_run("train.ipynb", cwd=tmp_path)
    assert run.code == 1
    assert 'File "cell 2", line 2' in run.stderr
    (tmp_path / "train.ipynb").write_text(notebook("x = %pwd"))
    assert 'File "cell 1", line 1' in tally_run("train.ipynb", cwd=tmp_path).stderr


def test_a_mistake_before_a_comment_that_asks_is_no_question_for_help(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook(f"{STEP}x = 1 +   # really?"))
    run = tally_run("train.ipynb", cwd=tmp_path)
    assert run.code == 1
    assert "SyntaxError" in run.stderr


def test_a_cell_keeps_what_a_command_prints(tmp_path: Path) -> None:
    """Names of the cell are put in; braces that are none of Python's are the shell's."""
    command = "!echo $n {n + 1:02d} ${NOWHERE}{a b}; echo two"
    cell = f"n = 6\nx = {command}\n?n\nn.real?\nprint(list(x), x[-1])"
    (tmp_path / "train.ipynb").write_text(notebook(f"{STEP}{cell}"))
    run = tally_run("train.ipynb", cwd=tmp_path)
    assert run.code == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "['6 07 {a b}', 'two'] two"
    assert [line.rpartition(": ")[2] for line in run.stderr.splitlines() if "IPython" in line] == [
        "?n",
        "n.real?",
    ]


@pytest.mark.parametrize("text", ["not JSON", "{}", '{"cells": [{"cell_type": "code"}]}'])
def test_a_file_that_is_no_notebook(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(text)
    run = tally_run("train.ipynb", cwd=tmp_path)
    assert run.code == 2
    assert run.stderr.startswith("tally: error: train.ipynb: not a Jupyter notebook of format 4")


def zeros(place: Path) -> str:
    with place.open("wb") as file:
        file.truncate(10**12)
    return str(place)


def checkpoint(place: Path) -> str:
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("archive/data.pkl", "")
    return str(place)


@pytest.mark.parametrize(
    ("place_of", "reason"),
    [
        (lambda folder: "/dev/zero", "/dev/zero is a device, not a script."),
        (lambda folder: zeros(folder / "train.py"), "holds more than 64 MB, too much for a script"),
        (lambda folder: zeros(folder / "a.ipynb"), "holds more than 64 MB, too much for a script"),
        (lambda folder: zeros(folder / "a.pyc"), "holds more than 64 MB, too much for a script"),
        (lambda folder: checkpoint(folder / "ckpt.pt"), "is a zip file without a __main__.py"),
    ],
)
def test_what_cannot_be_a_script_is_refused_unread(
    place_of: Callable[[Path], str], reason: str, tmp_path: Path
) -> None:
    place = place_of(tmp_path)
    for arguments in ([place], [place, "--steps", "1"]):
        run = tally_run(*arguments, cwd=tmp_path)
        assert run.code == 2
        assert run.stderr.startswith("tally: error: ")
        assert reason in run.stderr.splitlines()[0]
        assert len(run.stderr.splitlines()) == 2


@pytest.mark.parametrize("script", ["-", "/dev/stdin"])
def test_code_without_an_end_is_refused(script: str, tmp_path: Path) -> None:
    with Path("/dev/zero").open("rb") as zero:
        piped = subprocess.Popen(["cat"], stdin=zero, stdout=subprocess.PIPE)
    with piped:
        done = subprocess.run(
            command(script), stdin=piped.stdout, capture_output=True, text=True, cwd=tmp_path,
            env=environment(), timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        piped.kill()
    assert done.returncode != 0
    assert "holds more than 64 MB, too much for a script" in done.stderr


def test_a_script_in_a_pipe_is_read_once(tmp_path: Path) -> None:
    done = subprocess.run(
        command("/dev/stdin", "--steps", "all"), input=STEP, capture_output=True, text=True,
        cwd=tmp_path, env=environment(), timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("['/dev/stdin'] __main__")


# Options of the same name ------------------------------------------------------------------------

OWN_OPTIONS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument('--gpu', type=int, default=-1)
args = parser.parse_args()
print(args.steps, args.gpu)
"""


def test_an_option_that_the_script_has_too_is_the_scripts(tmp_path: Path) -> None:
    run = run_script(OWN_OPTIONS, "--steps", "7", "--gpu=0", cwd=tmp_path)
    assert run.stdout == "7 0\n"
    assert [line for line in run.stderr.splitlines() if "note" in line] == [
        f"tally: note: {option} goes to train.py, which has an option of this name. tally's own "
        f"goes before the script: tally run {option} ... train.py"
        for option in ("--steps", "--gpu")
    ]


def test_a_chip_is_ours_also_behind_a_script_with_a_gpu_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_OPTIONS)
    ours = command("train.py", "--gpu", "T4", "--gpu", "1")
    first = ours.index("--gpu")  # the one that every test gives
    done = subprocess.run(
        ours[:first] + ours[first + 2 :], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    assert done.stdout == "None 1\n"
    assert "nothing was allocated on the T4" in done.stderr


@pytest.mark.parametrize(
    ("option", "near"),
    [("--asert", "--assert"), ("--buget", "--budget"), ("--ouput=x", "--output")],
)
def test_a_misspelled_option_does_not_go_to_a_script_without_it(
    tmp_path: Path, option: str, near: str
) -> None:
    """It would run on, and the limit would be gone."""
    run = run_script(STEP, option, "peak < 1KiB", cwd=tmp_path)
    assert run.code == 2
    name = option.partition("=")[0]
    assert run.stderr.splitlines()[-2:] == [
        f"tally: error: unknown option {name}: train.py has none of this name. "
        f"Did you mean {near}?",
        f"If it is for the script, put it after --: tally run ... train.py -- {name}",
    ]


def test_nor_to_a_module_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    for name in ("train.py", "pack/__main__.py"):
        (tmp_path / name).write_text("import torch\n")
    (tmp_path / "asert.py").write_text("asert = 1\n")
    parser = RunParser()
    for option in ("-m", "--assert", "-c"):
        parser.add_argument(option)
    for module in ("train", "pack"):
        with pytest.raises(SystemExit):
            parser.split(["-m", module, "--asert", "peak < 1KiB"])
    (tmp_path / "train.py").write_text("pass\n")
    for launcher in (["torchrun"], ["-m", "torch.distributed.run"]):
        with pytest.raises(SystemExit):
            parser.split([*launcher, "--nproc-per-node", "2", "train.py", "--asert", "x"])
    for others in (["-m", "asert"], ["-m", "installed"], ["-c", "pass"]):
        assert parser.split([*others, "--asert", "x"])[1] == ["--asert", "x"]


def test_what_is_misspelled_on_purpose_goes_after_two_dashes(tmp_path: Path) -> None:
    run = run_script(STEP, "--", "--asert", "x", cwd=tmp_path)
    assert run.stdout.startswith("['train.py', '--asert', 'x']")


NO_PARSER = "import torch\n"
SOME_OPTIONS = "import argparse\nargparse.ArgumentParser().parse_known_args()\n"
OTHERS = {
    "an option of its own": ("import sys\nasert = '--asert' in sys.argv\n", ""),
    "a parser, which refuses it": ("import argparse\nargparse.ArgumentParser().parse_args()\n", ""),
    "a parser of transformers": ("from transformers import HfArgumentParser\n", ""),
    "a framework": ("import hydra\n", ""),
    "a module beside it": ("import settings\n", "import argparse\n"),
    "an option in a module beside it": ("import settings\n", "parser.add('asert')\n"),
}


@pytest.mark.parametrize(("script", "module"), OTHERS.values(), ids=OTHERS.keys())
def test_what_may_be_the_scripts_own_is_not_judged(
    tmp_path: Path, script: str, module: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "settings.py").write_text(module)
    assert not ignores_option(str(tmp_path / "train.py"), "--asert")


@pytest.mark.parametrize("script", [NO_PARSER, SOME_OPTIONS], ids=["none", "parse_known_args"])
def test_a_script_that_lets_any_option_pass_is_found(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    assert ignores_option(str(tmp_path / "train.py"), "--asert")


def test_gpus_is_gpu_but_where_the_script_has_it(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(NO_PARSER)
    plain = command("plain.py")
    plain[plain.index("--gpu") : plain.index("--gpu") + 2] = ["--gpus", "T4"]
    done = subprocess.run(
        plain, cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    assert "nothing was allocated on the T4" in done.stderr
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--gpus')\n"
    run = run_script(parser + "print(p.parse_args().gpus)\n", "--gpus", "2", cwd=tmp_path)
    assert run.stdout == "2\n"


def test_options_that_only_we_have_are_ours_behind_the_script(tmp_path: Path) -> None:
    run = run_script(STEP, "--steps", "1", "--lr", "2", cwd=tmp_path)
    assert run.trace.ending == Ending("steps")
    assert "note" not in run.stderr


# Processes ---------------------------------------------------------------------------------------

SPAWN = f"""\
import torch.multiprocessing as mp
def train(rank, world_size):
{"".join(f"    {line}" for line in STEP.splitlines(keepends=True))}
if __name__ == "__main__":
    mp.spawn(train, args=(1,), nprocs=mp.cpu_count() and 1)
    mp.start_processes(train, args=(1,), nprocs=1, join=False).join()
"""


def test_spawning_one_process_is_seen(tmp_path: Path) -> None:
    run = run_script(SPAWN, "--steps", "3", cwd=tmp_path)
    assert run.code == 0, run.stderr
    assert len(run.trace.step_ends) == 2
    assert "train.py:6" in lines_of(run)


def test_spawning_several_processes_says_who_refuses_it(tmp_path: Path) -> None:
    run = run_script(SPAWN.replace("nprocs=1", "nprocs=2"), cwd=tmp_path)
    assert run.code == 1
    assert "torch.multiprocessing.spawn of 2 processes" in run.stderr


CHILD = """\
import multiprocessing as mp, torch
def work():
    torch.zeros(1).cuda()
if __name__ == "__main__":
    child = mp.get_context("METHOD").Process(target=work, name="trainer")
    child.start()
    child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_failed_in_place_of_a_training(method: str, tmp_path: Path) -> None:
    run = run_script(CHILD.replace("METHOD", method), cwd=tmp_path)
    assert run.code == 1
    assert "child processes failed: trainer with exit code 1" in run.stderr
    assert ("Cannot re-initialize CUDA in forked subprocess" in run.stderr) == (method == "fork")


@pytest.mark.thorough
def test_a_program_that_failed_in_place_of_a_training(tmp_path: Path) -> None:
    launch = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'raise SystemExit(3)'])"
    run = run_script(launch, cwd=tmp_path)
    assert run.code == 1
    assert "with exit code 3" in run.stderr
    # Beside a training it is the script's own affair.
    assert run_script(f"{launch}\n{STEP}", cwd=tmp_path).code == 0


@pytest.mark.thorough
def test_a_script_that_finds_too_few_gpus_has_not_trained(tmp_path: Path) -> None:
    text = "import torch\nif torch.cuda.device_count() < 2: print('not enough GPUs')"
    run = run_script(text, cwd=tmp_path)
    assert (run.code, run.stdout) == (1, "not enough GPUs\n")
    assert "asked how many GPUs there are (1 simulated) and ran nothing on it" in run.stderr
    assert run_script(f"{text}\ntorch.zeros(1).cuda()", cwd=tmp_path).code == 0


def test_a_script_that_asks_for_no_gpu_ends_as_it_ends(tmp_path: Path) -> None:
    assert run_script("print('hello')", cwd=tmp_path).code == 0


# What cannot run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "note"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')",
         "libcudart.so.12 belongs to CUDA"),
        ("raise OSError('CUDA_HOME environment variable is not set')", "CUDA_HOME is needed"),
        ("raise RuntimeError('0 active drivers ([]). There should only be one.')",
         "tally launches Triton kernels without compiling them"),
        ("from apex import fused_dense", "fused_dense is not one of the kernels that tally knows"),
        ("import flash_attn.cute", "flash_attn.cute is not one of the kernels that tally"),
        ("import transformer_engine.pytorch as te; te.cpu_offload",
         "cpu_offload is not one of the kernels that tally knows"),
        ("import fbgemm_gpu.experimental.gemm", "fbgemm_gpu is not one of the kernels that tally"),
        ("import torch; torch.ops.vllm.fused_experts",
         "fused_experts is not one of the kernels that tally knows"),
        ("raise ModuleNotFoundError(\"No module named 'triton'\")",
         'triton is not installed: pip install "torchtally[compile]"'),
        ("import torch; torch.cuda.jiterator._create_jit_fn('template <typename T> T f(T x) "
         "{ return x; }')(torch.zeros(1).cuda())", "is not available on tally's simulated GPU"),
        ("raise AssertionError('Torch not compiled with CUDA enabled')",
         "went past the simulated GPU"),
    ],
)  # fmt: skip
def test_an_error_that_comes_of_simulating_says_so(
    statement: str, note: str, tmp_path: Path
) -> None:
    run = run_script(statement, cwd=tmp_path)
    assert run.code == 1
    assert "tally" in run.stderr
    assert note in run.stderr


def test_other_errors_are_the_scripts_own(tmp_path: Path) -> None:
    assert "tally: note" not in run_script("raise ValueError('size 3')", cwd=tmp_path).stderr
