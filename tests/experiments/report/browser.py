"""A headless Chromium, controlled through the plain WebDriver protocol, so that no package is needed."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run --window-size=1280,900"
ARGUMENTS += " --disable-background-networking --disable-component-update --disable-sync --force-device-scale-factor=1"
# The driver is on this machine, whatever proxy the environment names.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """One window. Use as a context; `profile` must be an empty folder.

    Without a Chromium the test is skipped, or fails where REQUIRE_BROWSER is set in the environment.
    """

    path: Path
    """The page that tests share, kept here by their fixture."""

    def __init__(self, profile: Path) -> None:
        self.profile = profile

    def __enter__(self) -> Self:
        if DRIVER is None or CHROMIUM is None:
            reason = "needs chromium and chromedriver: apt-get install chromium chromium-driver"
            if os.environ.get("REQUIRE_BROWSER"):
                pytest.fail(reason)
            pytest.skip(reason)
        # The driver must outlive its pipe: it writes little, but it would stop at a full one.
        self.log = (self.profile.parent / f"{self.profile.name}.log").open("w+")
        self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self.address = f"http://127.0.0.1:{self._port()}"
            options = {"binary": CHROMIUM, "args": [*ARGUMENTS.split(), f"--user-data-dir={self.profile}"]}
            logs = {"browser": "ALL", "performance": "ALL"}
            capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
            session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            self.address += f"/session/{session['sessionId']}"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.ask("DELETE", "")
        finally:
            self._end()

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data=data, method=method, headers=headers)
        with DIRECT.open(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]

    def open(self, path: Path) -> None:
        self.ask("POST", "/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)
        return value

    def command(self, name: str, **parameters: object) -> Any:
        return self.ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def log_of(self, kind: str) -> list[dict[str, Any]]:
        return self.ask("POST", "/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """Returns the addresses of everything that the page has requested."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log_of("performance")]
        return [found["params"]["request"]["url"] for found in messages if found["method"] == "Network.requestWillBeSent"]

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def _port(self) -> int:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.log.seek(0)
            if found := re.search(r"successfully on port (\d+)", self.log.read()):
                return int(found[1])
            time.sleep(0.05)
        raise AssertionError("chromedriver did not start")

    def _end(self) -> None:
        self.driver.terminate()
        self.driver.wait(timeout=30)
        self.log.close()
