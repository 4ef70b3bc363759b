"""The clocks a script reads answer predicted time; those of libraries and of Python do not."""

import datetime
import logging
import pickle
import threading
import time
import timeit
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.run_tally import tally_run
from torchtally.ledger import account
from torchtally.runs.function import run
from torchtally.timing.targets import roofline
from torchtally.trace import EffectKind, Trace

GPU = "H100-SXM"
SIZE = 8192
PRODUCT_S = 2 * SIZE**3 / 989.4e12
"""At the promised rate, which a product does not quite reach."""


def timed(source: str, **names: Any) -> tuple[dict[str, Any], Trace]:
    """Run a script of one's own: it has `product`, and a matrix on the GPU; its names."""
    space: dict[str, Any] = {"__name__": "script", "__file__": "/home/me/script.py", **names}

    def script() -> None:
        a = torch.zeros(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)

        def product() -> None:
            a @ a
            torch.cuda.synchronize()

        space["product"] = product
        product()
        exec(compile(source, "/home/me/script.py", "exec"), space)

    return space, run(script, gpu=GPU)


@pytest.mark.parametrize(
    ("read", "unit_s"),
    [
        ("time.time()", 1),
        ("time.perf_counter()", 1),
        ("time.monotonic()", 1),
        ("time.time_ns()", 1e-9),
        ("time.perf_counter_ns()", 1e-9),
        ("time.monotonic_ns()", 1e-9),
        ("imported()", 1),
        ("timeit.default_timer()", 1),
        ("datetime.datetime.now().timestamp()", 1),
        ("datetime.datetime.utcnow().timestamp()", 1),
        ("date_time.now(datetime.timezone.utc).timestamp()", 1),
    ],
)
def test_a_product_takes_what_is_predicted(read: str, unit_s: float):
    space, trace = timed(f"""
import datetime, time, timeit
from datetime import datetime as date_time
from time import perf_counter as imported
start = {read}
product()
taken = {read} - start
""")
    seconds = account(trace, roofline=roofline(GPU)).times
    assert seconds is not None
    taken_s = space["taken"] * unit_s
    assert PRODUCT_S < taken_s < 2 * PRODUCT_S
    products = [
        e for e in account(trace, roofline=roofline(GPU)).entries if e.call.name == "aten.mm"
    ]
    slot = account(trace, roofline=roofline(GPU)).slot(products[-1])
    assert taken_s == pytest.approx(slot.seconds, rel=0.01)


def test_timeit_runs_by_predicted_time():
    space, _ = timed("import timeit\ntaken = timeit.timeit(product, number=10) / 10")
    assert PRODUCT_S < space["taken"] < 2 * PRODUCT_S
    space, _ = timed(
        "import timeit\ntaken = min(timeit.repeat('product()', number=2, globals=globals())) / 2"
    )
    assert PRODUCT_S < space["taken"] < 2 * PRODUCT_S


def test_without_a_wait_the_host_is_ahead_of_the_device():
    """Issuing a product takes microseconds; waiting for it, milliseconds."""
    space, _ = timed("""
import time
a = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(10): a @ a
issued = time.perf_counter() - start
torch.cuda.synchronize()
done = time.perf_counter() - start
""", torch=torch)  # fmt: skip
    assert space["issued"] < PRODUCT_S < 10 * PRODUCT_S < space["done"]


def test_sleeping_takes_its_time_by_every_clock():
    started_s = time.perf_counter()
    space, _ = timed("""
import time
from time import sleep
start = time.time()
sleep(0.1)
time.sleep(0.1)
taken = time.time() - start
""")
    assert space["taken"] == pytest.approx(0.2, abs=1e-4)
    assert time.perf_counter() - started_s > 0.2


@pytest.mark.thorough
def test_waiting_in_a_loop_comes_to_an_end():
    space, _ = timed("""
import time
start = time.monotonic()
while time.monotonic() < start + 0.01: pass
ended = True
""")
    assert space["ended"]


def test_python_and_other_libraries_keep_the_real_clock():
    def logged_s(path: str) -> float:
        record = logging.LogRecord("x", 20, path, 1, "", (), None)
        return record.created

    before_s = time.time()
    space, _ = timed("""
import threading, time
started = threading.Event()
first, second = logged("a"), None
time.sleep(0.05)
second = logged("b")
waited = threading.Event().wait(0.05)
library, trainer = {}, {}
read = "import time\\nread = time.time()"
exec(compile(read, "/x/site-packages/requests/api.py", "exec"), library)
exec(compile(read, "/x/site-packages/transformers/trainer.py", "exec"), trainer)
mine = time.time()
""", logged=logged_s)  # fmt: skip
    assert space["second"] - space["first"] >= 0.05
    assert before_s <= space["library"]["read"] <= time.time()
    assert space["trainer"]["read"] == pytest.approx(space["mine"], abs=1e-4)


def test_threads_of_the_program_keep_the_real_clock():
    """Who runs already when a function is traced is none of it."""
    read: list[float] = []
    go, done = threading.Event(), threading.Event()

    def watch() -> None:
        go.wait()
        read.append(time.time())
        done.set()

    thread = threading.Thread(target=watch)
    thread.start()
    begun_s = time.time()
    space, _ = timed("""
import time, torch
large = torch.zeros(65536, 65536, device="cuda", dtype=torch.bfloat16)
for _ in range(7000): torch.mm(large, large, out=large)
torch.cuda.synchronize()
go.set()
done.wait()
mine = time.time()
""", go=go, done=done)  # fmt: skip
    thread.join()
    assert begun_s <= read[0] <= time.time()
    assert space["mine"] > begun_s + 3600  # 7,000 products, of more than half a second each


def test_dates_are_pickled_and_compared_as_ever():
    space, _ = timed("""
import pickle
from datetime import datetime, timedelta
now = datetime.now()
class Mine(datetime): pass
facts = (pickle.loads(pickle.dumps(now)) == now, isinstance(now, datetime),
         datetime(2024, 1, 2).day, datetime.strptime("2024", "%Y").year,
         isinstance(Mine(2024, 1, 1), Mine),
         issubclass(Mine, datetime), datetime.min < now - timedelta(days=1) < now)
""")
    assert space["facts"] == (True, True, 2, 2024, True, True, True)
    assert type(space["now"]) is datetime.datetime
    assert pickle.loads(pickle.dumps(space["now"])) == space["now"]


def test_everything_is_as_before_afterwards():
    names = ("time", "perf_counter", "monotonic", "time_ns", "sleep")
    before = [getattr(time, name) for name in names]
    defaults = timeit.timeit.__defaults__
    native_import = __builtins__["__import__"]  # type: ignore[index]
    timed("import time\ntime.time()")
    assert [getattr(time, name) for name in names] == before
    assert timeit.timeit.__defaults__ == defaults
    assert timeit.default_timer is time.perf_counter
    assert __builtins__["__import__"] is native_import  # type: ignore[index]


def test_the_report_says_which_lines_read_a_clock():
    _, trace = timed("import time\nfor _ in range(3): time.time()\ntime.monotonic()\n")
    reads = {
        (effect.name, effect.frame.line, effect.count)
        for effect in trace.effects
        if effect.kind is EffectKind.CLOCK and effect.frame is not None
    }
    assert reads == {("time.time", 2, 3), ("time.monotonic", 3, 1)}


SCRIPT = """\
import time, torch
a = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
start = time.time()
for _ in range(5): a @ a
torch.cuda.synchronize()
print((time.time() - start) / 5)
"""


def test_the_hosts_clock_on_request(tmp_path: Path):
    (tmp_path / "bench.py").write_text(SCRIPT)
    predicted = tally_run("bench.py", cwd=tmp_path)
    assert PRODUCT_S < float(predicted.stdout) < 2 * PRODUCT_S
    assert "Clocks that read predicted time" in predicted.stderr
    hosts = tally_run("--host-clock", "bench.py", cwd=tmp_path)
    assert not any(effect.kind is EffectKind.CLOCK for effect in hosts.trace.effects)


@pytest.mark.thorough("test_threads_of_the_program_keep_the_real_clock")
def test_a_child_process_has_the_hosts_clock(tmp_path: Path):
    """It has no GPU either; a worker of a data loader is one."""
    (tmp_path / "parent.py").write_text("""\
import os, time, torch
a = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
for _ in range(10_000): a @ a
torch.cuda.synchronize()
before = time.time()
pid = os.fork()
if not pid:
    print(before - time.time() > 5, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
""")
    assert tally_run("parent.py", cwd=tmp_path).stdout == "True\n"
