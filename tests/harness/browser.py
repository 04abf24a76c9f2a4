"""A real browser, Chromium without a window, by its debugging protocol (one JSON object after another, each ended by
NUL, over two pipes)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
DEADLINE = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)


class Chromium:
    """A browser without a page. profile: a folder of its own."""

    def __init__(self, profile: Path) -> None:
        theirs, self._write = os.pipe()
        self._read, ours = os.pipe()
        self._numbers = itertools.count(1)
        self._rest = b""
        # The browser expects its ends as descriptors 3 and 4.
        command = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh", str(CHROMIUM), *_FLAGS]
        command += [f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdin=theirs, stdout=ours, stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(ours)

    def __enter__(self) -> Chromium:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Without its pipe the browser ends, and its own processes do, too.
        os.close(self._write)
        try:
            self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def send(self, method: str, given: dict[str, object], session: str | None = None) -> int:
        """Calls a method of the protocol; the number that its result will have."""
        number = next(self._numbers)
        message: dict[str, object] = {"id": number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return number

    def call(self, method: str, **given: object) -> dict[str, Any]:
        """The result of a method of the protocol that belongs to no page."""
        number = self.send(method, given)
        while (answer := self.message()).get("id") != number:
            pass
        return result_of(answer)

    def message(self) -> dict[str, Any]:
        """The next result or event."""
        end = time.monotonic() + DEADLINE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            read = os.read(self._read, 1 << 20) if ready else b""
            assert read, "the browser has not responded"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


def result_of(answer: dict[str, Any]) -> dict[str, Any]:
    """What a method of the protocol has returned."""
    assert "error" not in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


class Browser:
    """One page. It shares the browser with other pages, and neither cookies nor storage nor a cache."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        self._context: str = chromium.call("Target.createBrowserContext")["browserContextId"]
        page = {"url": "about:blank", "browserContextId": self._context}
        target = chromium.call("Target.createTarget", **page)["targetId"]
        self._session: str = chromium.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._chromium.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **given: object) -> dict[str, Any]:
        """The result of a method of the protocol."""
        number = self._chromium.send(method, given, self._session)
        while (answer := self._message()).get("id") != number:
            pass
        return result_of(answer)

    def _message(self) -> dict[str, Any]:
        # Others are about pages that were closed.
        while (message := self._chromium.message()).get("sessionId") != self._session:
            pass
        if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            self.problems.append(json.dumps(message["params"]))
        return message

    def _await_load(self) -> None:
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def open(self, url: str) -> None:
        """Loads a page."""
        self.call("Page.navigate", url=url)
        self._await_load()

    def value(self, script: str) -> Any:
        """What a script gives in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key. code: as of `KeyboardEvent.keyCode`."""
        text = "\r" if key == "Enter" else ""
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def _middle(self, selector: str) -> dict[str, float]:
        """The middle of the first line of what this selector finds."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'nearest'}})")
        rect = json.loads(self.value(f"JSON.stringify({found}.getClientRects()[0])"))
        return {"x": rect["x"] + rect["width"] / 2, "y": rect["y"] + rect["height"] / 2}

    def point(self, selector: str) -> None:
        """Moves the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector: str, *, loads: bool = True) -> None:
        """Clicks there, and waits for the next page if it is to load one."""
        at = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
        if loads:
            self._await_load()

    def emulate(self, *, width: int, height: int = 800, scheme: str = "light", scale: float = 1) -> None:
        """The size of the window, the colors that the user prefers, and the pixels of a pixel."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, **given: object) -> bytes:
        """What is seen, as PNG. given: arguments of `Page.captureScreenshot`."""
        return base64.b64decode(self.call("Page.captureScreenshot", **given)["data"])


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """As in WCAG 2.2; 4.5 is its minimum for text."""

    def luminance(color: tuple[int, ...]) -> float:
        parts = [part / 255 for part in color[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
