"""A browser for tests: headless Chromium, controlled through a pipe (DevTools protocol) without further packages."""

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
    """One page. `problems` lists console errors, exceptions and failed loads; `asked` every address requested."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None
        to_read, to_write, from_read, from_write = (self._above(end) for end in os.pipe() + os.pipe())
        options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --mute-audio"

        def connect() -> None:
            os.dup2(to_read, 3)  # Chromium reads commands here
            os.dup2(from_write, 4)  # and writes its answers here

        self.process = subprocess.Popen(
            [CHROMIUM, *options.split(), f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            close_fds=False,  # Python's own files are not inherited anyway
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
        """The same end of a pipe with a file descriptor of at least 10, so that it is neither 3 nor 4."""
        moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(end)
        return moved

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._out)  # Chromium exits when its pipe is closed
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)

    # The protocol -----------------------------------------------------------------------------------------
    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; events that arrive meanwhile are recorded."""
        self._calls += 1
        command = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != self._calls:
            self._record(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def _receive(self, seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer for {seconds} s")
            self._buffer += os.read(self._in, 1 << 20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _record(self, event: dict[str, Any]) -> None:
        details, kind = event.get("params", {}), event.get("method")
        if kind == "Runtime.exceptionThrown":
            self.problems.append(str(details["exceptionDetails"].get("exception", {}).get("description", details)))
        elif kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.problems.append(str([argument.get("value") for argument in details["args"]]))
        elif kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        elif kind == "Network.loadingFailed":
            self.problems.append(f"failed to load: {details['errorText']}")
        elif kind == "Network.requestWillBeSent":
            self.asked.append(details["request"]["url"])

    # User actions -----------------------------------------------------------------------------------------
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
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse to the centre of the first match, and press it if `click`."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"!!{element}")
        x, y = self.js(
            "(e => { e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })(" + element + ")"
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
