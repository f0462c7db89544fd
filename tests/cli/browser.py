"""A headless Chromium, driven over its DevTools protocol, to try pages with a mouse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One tab; ``run`` evaluates JavaScript in it, ``drag`` moves the mouse with its button held."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.number, self.errors = socket, 0, list[str]()

    def call(self, method: str, **parameters: Any) -> Any:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=30))
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(json.dumps(answer["params"])[:500])
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, code: str) -> Any:
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, code: str) -> None:
        end = time.monotonic() + 20
        while not self.run(code):
            assert time.monotonic() < end, f"never true: {code}\n{self.errors}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        def mouse(kind: str, place: tuple[float, float]) -> None:
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", buttons=1, clickCount=1
            )

        mouse("mousePressed", start)
        mouse("mouseMoved", ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2))
        mouse("mouseMoved", end)
        mouse("mouseReleased", end)


@contextmanager
def browser(folder: Path, url: str) -> Iterator[Tab]:
    """A tab showing ``url``; the test skips where there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    process = subprocess.Popen(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1400,900",
         "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions", "--disable-sync",
         "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = next(m[1] for line in process.stderr if (m := re.search(r"(ws://\S+)", line)))
        with connect(address, max_size=None) as socket:
            outer = Tab(socket)
            target = outer.call("Target.createTarget", url="about:blank")["targetId"]
        with connect(re.sub(r"/devtools/.*", f"/devtools/page/{target}", address), max_size=None) as socket:
            tab = Tab(socket)
            for domain in ("Runtime", "Log", "Page"):
                tab.call(f"{domain}.enable")
            tab.call("Page.navigate", url=url)
            yield tab
    finally:
        process.terminate()
        process.wait(10)
