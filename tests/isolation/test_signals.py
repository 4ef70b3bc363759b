"""A signal may arrive at any moment: what its handler raises leaves no door open."""

import os
from pathlib import Path

from tests.cli.run_tally import tally_run
from tests.isolation.snapshot import snapshot

SIGNALS = int(os.environ.get("TALLY_SIGNALS", 200))

INTERRUPTED = """\
import os, random, shutil, signal, sqlite3, sys
import torch

class Late(Exception): pass
def late(*_): raise Late

signal.signal(signal.SIGALRM, late)
rng, arrived = random.Random(0), 0
while arrived < int(sys.argv[1]):
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-3))
        for _ in range(20):  # for ever, were an error lost that is raised in a finalizer
            with open("log", "a") as log: log.write("x")
            open("data", "rb").read()
            os.stat("text"), os.listdir(), os.path.exists("nothing")
            os.replace("ckpt.pt", "ckpt.old"); os.replace("ckpt.old", "ckpt.pt")
            os.chmod("text", 0o600)
            open(os.devnull, "w").close()
    except Late:
        arrived += 1
    except OSError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    with open("ckpt.pt", "w") as file: file.write(str(arrived))
    with open("text", "w") as file: file.write(str(arrived))
    assert open("ckpt.pt").read() == open("text").read() == str(arrived)
torch.save(torch.ones(8, device="cuda"), "data")
print(arrived, open("ckpt.pt").read())
"""


def test_nothing_is_changed_however_often_a_signal_raises(tmp_path: Path):
    (tmp_path / "train.py").write_text(INTERRUPTED)
    for name in ("ckpt.pt", "log", "data", "text"):
        (tmp_path / name).write_bytes(os.urandom(1000))
    before = snapshot(tmp_path)
    run = tally_run("--steps", "all", "train.py", str(SIGNALS), cwd=tmp_path)
    assert run.stdout == f"{SIGNALS} {SIGNALS}\n", run.stderr
    assert snapshot(tmp_path, without=("run.tally",)) == before
