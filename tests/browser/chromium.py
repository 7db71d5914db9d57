"""Drives a headless Chromium that is installed, over a pipe: its DevTools protocol, and the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Names another browser than those on the PATH.
VARIABLE = "FROSTLINE_CHROMIUM"


def find_chromium() -> str | None:
    """Path of a browser to test with, or None."""
    chosen = os.environ.get(VARIABLE)
    if chosen and shutil.which(chosen) is None:
        raise FileNotFoundError(f"{VARIABLE} names {chosen}, which is no program")
    return chosen or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page in one browser. `with Page.open(binary, file) as page:`

    Attributes:
        errors: what the page's console reported as error, exceptions among it, and requests that it tried to make.
    """

    def __init__(self, process: subprocess.Popen[bytes], profile: Path, requests: int, answers: int) -> None:
        self._process, self._profile = process, profile
        self._requests, self._answers = requests, answers
        self._buffer, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []

    @classmethod
    def start(cls, binary: str, *, width: int = 1400, height: int = 900) -> Self:
        """A browser with an empty page of `width` x `height` pixels."""
        profile = Path(tempfile.mkdtemp(prefix="frostline-chromium-"))
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        # The protocol's two pipes are descriptors 3 and 4 of the browser.
        shell = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        options = ["--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        options += [f"--user-data-dir={profile}", f"--window-size={width},{height}", "--disable-dev-shm-usage"]
        process = subprocess.Popen(
            ["/bin/bash", "-c", shell, binary, *options, "about:blank"],
            pass_fds=(their_in, their_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)
        page = cls(process, profile, our_out, our_in)
        targets = page.call("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        page._session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page

    def open(self, file: Path) -> float:
        """Load `file` from the disk; seconds until it is loaded and drawn."""
        started = time.perf_counter()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") == "about:blank":
            time.sleep(0.02)
        self.settle()
        return time.perf_counter() - started

    def settle(self) -> None:
        """Wait until what was asked for is drawn and transitions have ended."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => Promise.all("
            "document.getAnimations().map(animation => animation.finished.catch(() => 0))).then(() => done(1)))))"
        )

    def wait_for(self, condition: str, seconds: float = 10) -> None:
        """Wait until a JavaScript expression is true, and what it led to is drawn."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"not in {seconds} s: {condition}"
            time.sleep(0.01)
        self.settle()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        """Press a key by its name, such as `Enter` or `u`."""
        code = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "Tab": 9}.get(key, 0)
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def emulate(self, *, dark: bool) -> None:
        """Let the page think that the user prefers dark or light."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, file: Path) -> None:
        """Write what the page shows as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """Send one command and return its result; events that come before it are looked at for errors."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._look_at(answer)
        raise AssertionError(f"{method}: no answer in 30 s")

    def _look_at(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(details["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(details["args"]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.errors.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(("file:", "data:")):
            self.errors.append(f"request: {details['request']['url']}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], 60)[0], "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        """End the browser and remove its profile."""
        os.close(self._requests)
        os.close(self._answers)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)
