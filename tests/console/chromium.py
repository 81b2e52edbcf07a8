"""Chromium without a window, by its DevTools protocol over a pipe: no driver and no library is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage")  # fmt: skip
_SECONDS = 60

Data = dict[str, Any]


class Chromium:
    """One tab. `requests`: the addresses that it has asked for; `errors`: what its console says is wrong."""

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._read = read
        self._number = 0
        self._left = b""
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._events: list[Data] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Data:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message: Data = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            self._take(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: Data = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._wait(lambda event: event["method"] == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def follow(self, script: str) -> None:
        """Do something that leads to another page, and wait until it is loaded."""
        self._events.clear()
        self.evaluate(script)
        self._wait(lambda event: event["method"] == "Page.loadEventFired")

    def show_as(self, width: int, height: int, *, dark: bool) -> None:
        """Give pages so much room (CSS pixels), and light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Press a key, such as Tab."""
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if kind == "keyDown" and text else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **given)

    def screenshot(self, file: Path) -> None:
        """Write a picture (PNG) of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def _message(self) -> Data:
        while b"\0" not in self._left:
            assert select.select([self._read], [], [], _SECONDS)[0], f"Chromium has said nothing for {_SECONDS} s"
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended"
            self._left += data
        line, _, self._left = self._left.partition(b"\0")
        message: Data = json.loads(line)
        return message

    def _take(self, event: Data) -> None:
        given = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(given["exceptionDetails"]["text"])
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        if "method" in event:
            self._events.append(event)

    def _wait(self, is_wanted: Callable[[Data], bool]) -> None:
        while not any(map(is_wanted, self._events)):
            self._take(self._message())


@contextmanager
def chromium(directory: Path) -> Iterator[Chromium]:
    """Start Chromium with a new profile below a directory; end it after the block."""
    assert PROGRAM is not None
    to_it, write = os.pipe()
    read, from_it = os.pipe()
    command = f'exec "$0" "$@" 3<&{to_it} 4>&{from_it} {to_it}<&- {from_it}>&-'
    options = [*_OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={directory / 'profile'}"]
    process = subprocess.Popen(
        ["bash", "-c", command, PROGRAM, *options],
        pass_fds=[to_it, from_it],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_it)
    os.close(from_it)
    try:
        yield Chromium(write, read)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(write)
        os.close(read)
