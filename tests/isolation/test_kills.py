"""A run that is killed has changed nothing, and the next one starts as if it had not been."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cli.run_tally import environment
from tests.isolation.snapshot import snapshot

KILLS = int(os.environ.get("TALLY_KILLS", 2))

SAVES = """\
import os, shutil, torch
from torch import nn
net = nn.Linear(64, 64).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(10_000):
    net(torch.ones(2, 64, device="cuda")).sum().backward()
    opt.step()
    torch.save(net.state_dict(), "ckpt.tmp")
    os.replace("ckpt.tmp", "ckpt.pt")
    with open("log", "a") as log:
        log.write(f"{step}\\n")
    with open("data", "r+b") as data:
        data.write(b"x" * 100)
    if os.path.exists(f"checkpoint-{step}"):
        shutil.rmtree(f"checkpoint-{step}")
    os.rename("text", "text.old")
    os.rename("text.old", "text")
    print(step, flush=True)
"""

FORKS = """\
import os, sys
import torch
import torchtally.cli.run, torchtally.isolation.run, torchtally.tracer.session, torchtally.views
from torchtally.cli import main
for _ in sys.stdin:
    pid = os.fork()
    if not pid:
        sys.stdin.close()
        sys.argv[1:] = "run", "saves.py", "--gpu", "H100-SXM", "--steps", "100000", "--quiet"
        os._exit(main())
    print("pid", pid, flush=True)
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


def test_nothing_is_changed_by_runs_that_are_killed(tmp_path: Path):
    (tmp_path / "saves.py").write_text(SAVES)
    for name in ("ckpt.pt", "log", "data", "text", "ckpt.tmp"):
        (tmp_path / name).write_bytes(os.urandom(1000))
    for step in range(4):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "weights").write_bytes(b"w")
    before = snapshot(tmp_path)
    rng = random.Random(0)
    server = subprocess.Popen(
        [sys.executable, "-c", FORKS], cwd=tmp_path, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    with server:
        for _ in range(KILLS):
            server.stdin.write("another\n")
            server.stdin.flush()
            pid = int(server.stdout.readline().split()[1])
            assert server.stdout.readline() == "0\n"  # the first step: the earlier run is no hurdle
            time.sleep(rng.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
            while server.stdout.readline() != "ended\n":
                continue
            assert snapshot(tmp_path, without=("run.tally",)) == before
        server.stdin.close()
    assert (tmp_path / "run.tally.files" / "log").exists()
