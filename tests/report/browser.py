"""A headless Chromium, spoken to in the plain WebDriver protocol, so that no package is needed."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
]
# The driver is on this machine, whatever proxy the environment names.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """One window. Use as a context; `profile` must be an empty folder."""

    def __init__(self, profile, *, size=(1280, 900)):
        self.profile = profile
        self.size = size

    def __enter__(self):
        # The driver must outlive its pipe: it writes little, but it would stop at a full one.
        self.log = (self.profile.parent / f"{self.profile.name}.log").open("w+")
        self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self.address = f"http://127.0.0.1:{self._port()}"
            options = {
                "binary": CHROMIUM,
                "args": [*ARGUMENTS, f"--window-size={self.size[0]},{self.size[1]}", f"--user-data-dir={self.profile}"],
            }
            logs = {"browser": "ALL", "performance": "ALL"}
            capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
            session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            self.address += f"/session/{session['sessionId']}"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.ask("DELETE", "")
        finally:
            self._end()

    def ask(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self.address + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with DIRECT.open(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]

    def open(self, path):
        self.ask("POST", "/url", {"url": path.resolve().as_uri()})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)
        return value

    def command(self, name, **parameters):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def log_of(self, kind):
        return self.ask("POST", "/se/log", {"type": kind})

    def requests(self):
        """Addresses of everything that the page has asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log_of("performance")]
        return [found["params"]["request"]["url"] for found in messages if found["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path, **more):
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", **more)["data"]))

    def press(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def _port(self):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.log.seek(0)
            found = re.search(r"successfully on port (\d+)", self.log.read())
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise AssertionError("chromedriver did not start")

    def _end(self):
        self.driver.terminate()
        self.driver.wait(timeout=30)
        self.log.close()
