"""The step over time: lanes that nest, memory that is the ledger's, and Perfetto's own reading."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given

from tests.builders import TraceBuilder, big_trace, factory_call, frame, mm_call, site
from tests.report.browser import CHROMIUM, Page, browser
from tests.report.browser import MISSING as NO_CHROMIUM
from tests.strategies import traces
from tests.viewers import MISSING, PERFETTO
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.exports import export, perfetto
from torchtally.timing.roofline import Roofline
from torchtally.trace import Phase, Trace

H100 = Roofline(chip("H100-SXM"))
MIB = 1 << 20
Json = dict[str, Any]


def document_of(ledger: Ledger) -> Json:
    content = export(ledger, "perfetto").parts[""]
    assert isinstance(content, str)
    document: Json = json.loads(content)
    return document


def slices_of(document: Json) -> dict[tuple[int, int], list[Json]]:
    """By (pid, tid), as written."""
    slices: dict[tuple[int, int], list[Json]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
    return slices


def misplaced(slices: list[Json]) -> list[Json]:
    """Those that begin within another and end behind it."""
    outside, around = [], []
    for each in slices:
        start = round(each["ts"] * 1000)
        end = start + round(each["dur"] * 1000)
        while around and around[-1] <= start:
            around.pop()
        if around and end > around[-1]:
            outside.append(each)
        around.append(end)
    return outside


@given(traces())
def test_slices_of_a_lane_nest(trace: Trace) -> None:
    for slices in slices_of(document_of(account(trace, roofline=H100))).values():
        assert misplaced(slices) == []
        starts = [each["ts"] for each in slices]
        assert starts == sorted(starts)


def test_an_overlap_is_found() -> None:
    """The checker can fail."""
    first, second = {"ts": 0, "dur": 5}, {"ts": 4, "dur": 3}
    assert misplaced([first, second]) == [second]
    assert misplaced([first, {"ts": 4, "dur": 1}, {"ts": 5, "dur": 1}]) == []


def blocks() -> Trace:
    """Two blocks with a line each, forward and backward; 512 x 512 floats are a MiB."""
    builder = TraceBuilder()
    for phase, numbers in ((Phase.FORWARD, (0, 1)), (Phase.BACKWARD, (1, 0))):
        for number in numbers:
            for line in (7, 8):
                place = site(frame(line=line), module=f"h.{number}", module_class="Block")
                builder.run(mm_call(512, 512, 512), [-1, -1], site=place, phase=phase)
    builder.reserve(0)
    builder.end_step()
    return builder.build()


def test_code_stands_over_time_as_phases_modules_and_lines() -> None:
    document = document_of(account(blocks(), roofline=H100))
    names = {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    (code,) = [tid for tid, name in names.items() if name == "stream 0: modules and lines"]
    slices = slices_of(document)[0, code]
    assert [each["name"] for each in slices] == [
        "forward", "h", "h.0: Block", "train.py:7  line_7()", "train.py:8  line_8()",
        "h.1: Block", "train.py:7  line_7()", "train.py:8  line_8()",
        "backward", "h", "h.1: Block", "train.py:7  line_7()", "train.py:8  line_8()",
        "h.0: Block", "train.py:7  line_7()", "train.py:8  line_8()",
    ]  # fmt: skip
    assert slices[3]["args"] == {"file": "train.py", "line": 7}
    (operators,) = [tid for tid, name in names.items() if name == "stream 0"]
    ends = [each["ts"] + each["dur"] for each in slices_of(document)[0, operators]]
    assert slices[8]["ts"] + slices[8]["dur"] == pytest.approx(ends[-1])


def test_counters_are_the_memory_of_the_ledger() -> None:
    builder = TraceBuilder()
    builder.reserve(20 * MIB)
    kept = builder.run(mm_call(512, 512, 512), [-1, -1])
    builder.run(mm_call(1024, 512, 1024), [kept, -1])
    builder.reserve(24 * MIB)
    builder.run(factory_call(8))
    document = document_of(account(builder.build(), roofline=H100))
    points: dict[str, list[int]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            points[event["name"]].append(event["args"]["bytes"])
    assert points["memory allocated"] == [MIB, 5 * MIB, 5 * MIB + 512]
    assert points["memory reserved"] == [20 * MIB, 24 * MIB]
    held = [each for name, each in points.items() if name.startswith("held for ")]
    assert sum(each[-1] for each in held) == 5 * MIB + 512


@pytest.mark.thorough
def test_too_many_slices_are_folded_by_line_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = account(big_trace(2000), roofline=H100, step="all")
    whole = export(ledger, "perfetto")
    assert whole.remarks == ()
    monkeypatch.setattr(perfetto, "MOST_SLICES", 1999)
    assert "2000 operators are folded into 2000 slices" in export(ledger, "perfetto").remarks[0]
    ledger = account(repeated(), roofline=H100)
    monkeypatch.setattr(perfetto, "MOST_SLICES", 5)
    folded = export(ledger, "perfetto")
    assert folded.remarks[0].startswith("6 operators are folded into 2 slices")
    content = folded.parts[""]
    assert isinstance(content, str)
    document = json.loads(content)
    assert document["otherData"]["folded"] == folded.remarks[0]
    first, second = (each for each in slices_of(document)[0, 1] if each["cat"] == "operator")
    assert (first["name"], first["args"]["operators"]) == ("aten.mm", 4)
    assert first["args"]["flops"] == 4 * 2 * 8**3
    assert second["name"] == "2 operators"


def repeated() -> Trace:
    """Four products on a line, then a product and a fill on another."""
    builder = TraceBuilder()
    for _ in range(4):
        builder.run(mm_call(8, 8, 8), [-1, -1], site=site(frame(line=7)))
    builder.run(mm_call(8, 8, 8), [-1, -1], site=site(frame(line=8)))
    builder.run(factory_call(8, name="aten.zeros"), site=site(frame(line=8)))
    return builder.build()


def test_without_times_there_is_nothing_to_write() -> None:
    with pytest.raises(UsageError, match="times are unknown"):
        export(account(blocks()), "perfetto")


# Perfetto's own page -----------------------------------------------------------------------------


class _Files(SimpleHTTPRequestHandler):
    """Perfetto's page, and a trace under a name that it does not have."""

    trace = b""

    def do_GET(self) -> None:
        """A file of the page, or the trace."""
        if self.path != "/run.trace":
            super().do_GET()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def opened(trace: bytes) -> Iterator[Page]:
    """The page with this trace, once its processor has read it."""
    handler = type("_Server", (_Files,), {"trace": trace})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(PERFETTO)))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with browser() as chromium:
            page = chromium.visit(address, f"/#!/?url={address}/run.trace")
            page.wait_for("Boolean(self.app?.trace)", 60)
            yield page
    finally:
        server.shutdown()
        server.server_close()


def queried(page: Page, sql: str) -> list[list[Any]]:
    """The rows that Perfetto's trace processor answers."""
    rows: list[list[Any]] = page.evaluate(
        f"self.app.trace.engine.query({json.dumps(sql)}).then((result) => {{"
        "const rows = []; for (const it = result.iter({}); it.valid(); it.next())"
        "rows.push(result.columns().map((name) => {"
        "const cell = it.get(name); return typeof cell === 'bigint' ? Number(cell) : cell; }));"
        "return rows; })"
    )
    return rows


@pytest.mark.thorough("the tests beside it read every slice and counter")
@pytest.mark.skipif(not PERFETTO.exists(), reason=MISSING)
@pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM)
def test_perfettos_own_processor_reads_all_of_it() -> None:
    """Every slice with its depth, every counter, and no complaint. Seconds: a whole page starts."""
    document = document_of(account(blocks(), roofline=H100))
    written = sum(event["ph"] == "X" for event in document["traceEvents"])
    with opened(json.dumps(document).encode()) as page:
        assert queried(page, "select count() from slice") == [[written]]
        complaints = "select name, value from stats where severity in ('error', 'data_loss')"
        assert [row for row in queried(page, complaints) if row[1]] == []
        lanes = queried(page, "select name from thread where name is not null order by tid")
        assert lanes == [["step"], ["stream 0"], ["stream 0: modules and lines"]]
        depths = "select distinct depth from slice where category = 'code' order by 1"
        assert queried(page, depths) == [[0], [1], [2], [3]]
        most = queried(page, "select t.name, max(value) from counter join counter_track t on "
                       "t.id = counter.track_id where t.name like 'memory allocated%'")  # fmt: skip
        assert most == [["memory allocated bytes", 8 * MIB]]
