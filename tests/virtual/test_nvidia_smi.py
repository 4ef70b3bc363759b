"""`nvidia-smi` as scripts ask it: by subprocess, by a shell, by looking for it."""

import os
import shutil
import subprocess

import pytest
import torch

import torchtally

TOTAL = 81559
"""MiB of an H100-SXM: what torch reports of 80 GB."""


def output(*arguments: str) -> str:
    return subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.usefixtures("gpu")
def test_fields_as_csv():
    total = torch.cuda.get_device_properties(0).total_memory // 2**20
    query = "--query-gpu=index,name,memory.total,compute_cap,driver_version"
    values = f"0, NVIDIA H100 80GB HBM3, {total}, 9.0, [N/A]\n"
    assert output(query, "--format=csv,noheader,nounits") == values
    assert output(query, "--format", "csv").splitlines() == [
        "index, name, memory.total [MiB], compute_cap, driver_version",
        values.strip().replace(str(total), f"{total} MiB"),
    ]
    assert output("--query-gpu=count", "--format=csv,noheader", "-i", "0") == "1\n"


@pytest.mark.usefixtures("gpu")
def test_used_memory_is_that_of_the_moment():
    def used() -> int:
        return int(output("--query-gpu=memory.used", "--format=csv,noheader,nounits"))

    before = used()
    kept = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    assert used() - before == 64
    del kept


@pytest.mark.usefixtures("gpu")
def test_lists_pages_and_shells():
    assert output("-L").startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")
    assert "NVIDIA H100 80GB HBM3" in output()
    assert subprocess.getoutput("nvidia-smi -L | wc -l").strip() == "1"
    assert subprocess.check_output("nvidia-smi").startswith(b"+--")
    assert os.system("nvidia-smi > /dev/null") == 0
    assert shutil.which("nvidia-smi")


@pytest.mark.usefixtures("gpu")
def test_a_child_with_an_environment_of_its_own():
    done = subprocess.run(["nvidia-smi", "-L"], env={"PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 0


@pytest.mark.usefixtures("gpu")
def test_a_question_without_an_answer_says_who_is_asked():
    done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("tally: nvidia-smi topo -m is not supported on the simulated GPU")


def test_the_program_is_gone_afterwards():
    before, smi = os.environ["PATH"], shutil.which("nvidia-smi")
    with torchtally.virtual_gpu("H100-SXM"):
        program = shutil.which("nvidia-smi")
    assert program is not None
    assert not os.path.exists(program)
    assert os.environ["PATH"] == before
    assert shutil.which("nvidia-smi") == smi
