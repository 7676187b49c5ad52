"""Drives a headless Chromium by chromedriver's WebDriver protocol, with Python's standard library only.

    with Browser() as browser:
        browser.open("report.html", width=400, dark=True)
        browser.run("return document.title")
"""

import base64
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


def missing():
    """Names what is not installed of Chromium; "" if nothing is missing."""
    driver = shutil.which("chromedriver")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return "" if driver and browser else "no " + ("Chromium" if driver else "chromedriver")


class Browser:
    def __enter__(self):
        self.profile = tempfile.mkdtemp(prefix="twinrun-browser-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                self._call("GET", "/status")
                break
            except urllib.error.URLError:
                if time.monotonic() > deadline or self.driver.poll() is not None:
                    raise
                time.sleep(0.1)
        # Containers seldom let a browser create its sandbox; the pages are ours and trusted.
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--user-data-dir={self.profile}"]
        always = {"goog:loggingPrefs": {"browser": "ALL"}, "goog:chromeOptions": {"args": arguments}}
        value = self._call("POST", "/session", {"capabilities": {"alwaysMatch": always}})
        self.session = "/session/" + value["sessionId"]

    def __exit__(self, *_):
        try:
            if hasattr(self, "session"):
                self._call("DELETE", self.session)
        except (OSError, RuntimeError):
            pass
        self.driver.terminate()
        self.driver.wait(20)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _call(self, method, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}",
                                         None if body is None else json.dumps(body).encode(),
                                         {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode(errors='replace')[:600]}") from None

    def devtools(self, command, **parameters):
        return self._call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script, *arguments):
        return self._call("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def open(self, path, width=1280, height=900, dark=False, media=""):
        """Loads a file; returns the console's warnings and errors."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                      mobile=False)
        self._call("POST", self.session + "/url", {"url": pathlib.Path(path).resolve().as_uri()})
        return self.console()

    def console(self):
        said = self._call("POST", self.session + "/se/log", {"type": "browser"})
        return [entry["message"] for entry in said if entry["level"] in ("WARNING", "SEVERE")]

    def drag(self, start, end):
        """Presses the mouse button at one point of the window and releases it at another; with one point, only moves there."""
        def move(place, milliseconds):
            return {"type": "pointerMove", "duration": milliseconds, "x": place[0], "y": place[1]}
        steps = [move(start, 50)]
        if end != start:
            steps += [{"type": "pointerDown", "button": 0}, move(end, 150), {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps}
        self._call("POST", self.session + "/actions", {"actions": [mouse]})

    def screenshot(self, path, whole=False, width=1280, height=900):
        """Returns the page as PNG: the part in the window, or all of it (up to 12,000 pixels)."""
        if whole:
            height = min(12000, self.run("return document.documentElement.scrollHeight"))
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                      mobile=False)
        pathlib.Path(path).write_bytes(base64.b64decode(self._call("GET", self.session + "/screenshot")))
