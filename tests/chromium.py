"""A browser for tests: headless Chromium, told what to do through its own pipe (DevTools protocol), no packages."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Browser:
    """One page. `problems` has every console error, exception and failed load; `asked`, every address loaded."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None
        to_read, to_write, from_read, from_write = (self._above(end) for end in os.pipe() + os.pipe())
        options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --mute-audio"

        def connect() -> None:
            os.dup2(to_read, 3)  # where Chromium listens
            os.dup2(from_write, 4)  # where it answers

        self.process = subprocess.Popen(
            [CHROMIUM, *options.split(), f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            close_fds=False,  # all others are closed anyway: Python opens files for itself only
            preexec_fn=connect,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self._in, self._out, self._buffer, self._calls = from_read, to_write, b"", 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _above(end: int) -> int:
        """The same end of a pipe with a number that is neither 3 nor 4."""
        moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(end)
        return moved

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._out)  # it ends when nobody talks to it
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)

    # The protocol -----------------------------------------------------------------------------------------
    def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        told = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            told["sessionId"] = self._session
        os.write(self._out, json.dumps(told).encode() + b"\0")
        while (heard := self._hear()).get("id") != self._calls:
            self._note(heard)
        if "error" in heard:
            raise RuntimeError(f"{method}: {heard['error']['message']}")
        return heard["result"]

    def _hear(self, seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium said nothing for {seconds} s")
            self._buffer += os.read(self._in, 1 << 20)
        heard, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(heard)

    def _note(self, heard: dict[str, Any]) -> None:
        told, kind = heard.get("params", {}), heard.get("method")
        if kind == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"].get("exception", {}).get("description", told)))
        elif kind == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(str([argument.get("value") for argument in told["args"]]))
        elif kind == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif kind == "Network.loadingFailed":
            self.problems.append(f"failed to load: {told['errorText']}")
        elif kind == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])

    # What people do ---------------------------------------------------------------------------------------
    def open(self, address: str, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.size(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def size(self, width: int, height: int = 900) -> None:
        mobile = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse to what people see of the first match, and press it."""
        told = json.dumps(selector)
        self.wait(f"!!document.querySelector({told})")
        found = f"document.querySelector({told})"
        x, y = self.js(
            "(e => { e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })(" + found + ")"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, selector: str) -> None:
        self.point(selector, click=True)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39}
        for kind in ("rawKeyDown", "keyUp") if key != "Enter" else ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def picture(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
