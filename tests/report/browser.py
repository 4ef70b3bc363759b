"""A real Chromium without a window, driven over its debugging protocol by a pipe.

    with browser() as chromium:
        page = chromium.open(path)
        page.evaluate("document.title")

https://chromedevtools.github.io/devtools-protocol: requests and events are JSON, each ended by a
zero byte, on the process's file descriptors 3 and 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
MISSING = "no Chromium here (apt-get install chromium)"
TIMEOUT_S = 60.0


class Page:
    """A tab. What it logs, what goes wrong and what it asks of a network is kept."""

    def __init__(self, pipe: "Pipe", session: str) -> None:
        self.pipe, self.session = pipe, session

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.pipe.send(method, params, self.session)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise's is waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 20.0) -> Any:
        """The expression's value, once it is true."""
        end = time.monotonic() + timeout_s
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"not within {timeout_s} s: {expression}"
            time.sleep(0.02)
        return value

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first such element."""
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def middle(self, selector: str) -> tuple[float, float]:
        box = self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "if (!node) return null; node.scrollIntoView({block: 'center'});"
            "const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        assert box is not None, f"no element {selector}"
        return box[0], box[1]

    def mouse(self, type: str, x: float, y: float, **more: Any) -> None:
        pressed = {} if type == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=type, x=x, y=y, **{**pressed, **more})
        if type != "mousePressed":
            self.settle()

    def drag(self, from_: tuple[float, float], to: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *from_)
        self.mouse("mousePressed", *from_)
        middle = (from_[0] + to[0]) / 2, (from_[1] + to[1]) / 2
        self.mouse("mouseMoved", *middle, button="left", buttons=1)
        self.mouse("mouseMoved", *to, button="left", buttons=1)
        self.mouse("mouseReleased", *to)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)
        self.settle()

    def settle(self) -> None:
        """Until what was typed or clicked has been handled, and drawn."""
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(1), 0)))"
        )

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=False,
        )  # fmt: skip

    def set_theme(self, theme: str) -> None:
        """What the reader's system is set to: "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path) -> None:
        answer = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, refused and failed requests."""
        complaints = []
        for method, params in self.pipe.events_of(self.session):
            if method == "Runtime.exceptionThrown":
                complaints.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] != "log":
                complaints.append(str(params["args"]))
            elif method == "Log.entryAdded":
                complaints.append(str(params["entry"]))
        return complaints

    @property
    def requests(self) -> list[str]:
        """Addresses asked for, but the page's own."""
        urls = [
            params["request"]["url"]
            for method, params in self.pipe.events_of(self.session)
            if method == "Network.requestWillBeSent"
        ]
        return urls[1:]


class Pipe:
    """Requests to a browser, their answers, and all that it tells."""

    def __init__(self, writing: int, reading: int) -> None:
        self.writing, self.reading = writing, reading
        self.number = 0
        self.rest = b""
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def send(self, method: str, params: dict[str, Any], session: str = "") -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self.writing, content) :]
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.reading], [], [], TIMEOUT_S)[0], "Chromium does not answer"
            part = os.read(self.reading, 1 << 20)
            assert part, "Chromium has gone"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append((message.get("sessionId", ""), message["method"], message["params"]))
        return message

    def events_of(self, session: str) -> list[tuple[str, dict[str, Any]]]:
        self.send("Target.getTargets", {})  # what came before its answer has been told
        return [(method, params) for own, method, params in self.events if own == session]


class Browser:
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def open(self, path: Path, *, width: int = 1280, height: int = 900, view: str = "") -> Page:
        """A file in a tab of its own, once it has finished loading."""
        return self.visit(path.resolve().as_uri(), view, width=width, height=height)

    def visit(self, address: str, view: str = "", *, width: int = 1280, height: int = 900) -> Page:
        """The same of an address."""
        target = self.pipe.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.pipe.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self.pipe, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.resize(width, height)
        page.send("Page.navigate", url=f"{address}{view}")
        page.wait_for("document.readyState === 'complete'")
        return page


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()

    def pass_on() -> None:
        # its ends may have the numbers 3 and 4 themselves: out of the way first
        reading, writing = os.dup(to_browser), os.dup(from_browser)
        high = [os.dup2(handle, 200 + place) for place, handle in enumerate((reading, writing))]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
             "--disable-component-update", f"--user-data-dir={profile}",
             "--remote-debugging-pipe"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=pass_on, close_fds=False,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Browser(Pipe(from_us, to_us))
        finally:
            process.kill()
            process.wait()
            os.close(from_us)
            os.close(to_us)
