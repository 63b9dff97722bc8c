"""Chromium without a window, spoken to by the DevTools protocol over two pipes: it needs no driver and no network."""

import base64
import json
import os
import shutil
import signal
from contextlib import contextmanager
from fcntl import F_DUPFD, fcntl
from select import select
from tempfile import TemporaryDirectory

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60
"""Seconds that an answer may take on a busy machine."""

FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
)


class Page:
    """One page: what it asked for, what it complained of, and what it says."""

    def __init__(self, to_browser, from_browser):
        self._to_browser, self._from_browser, self._unread = to_browser, from_browser, b""
        self._number, self._session, self._loaded = 0, None, False
        self.requests, self.complaints = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """One command, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, url):
        """Go to an address and wait until the page is loaded."""
        self.load(lambda: self.call("Page.navigate", url=url))

    def load(self, action):
        """Do what leads to another page, and wait until that is loaded."""
        self._loaded = False
        action()
        while not self._loaded:
            self._note(self._read())
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, script):
        """The value of an expression, once it is there."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def resize(self, width, height=800):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def set_colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def move_pointer(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self):
        """The whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def _read(self):
        while b"\0" not in self._unread:
            assert select([self._from_browser], [], [], PATIENCE)[0], "Chromium does not answer"
            read = os.read(self._from_browser, 1 << 20)
            assert read, "Chromium has ended"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)


@contextmanager
def chromium():
    """A page in a browser of its own, which is ended afterwards."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        ends = [end for _ in range(2) for end in os.pipe()]
        # Above the two numbers that the browser is going to read from and write to.
        its_input, to_browser, from_browser, its_output = (fcntl(end, F_DUPFD, 10) for end in ends)
        for end in ends:
            os.close(end)
        for ours in (to_browser, from_browser):
            os.set_inheritable(ours, False)
        process = os.posix_spawn(
            PROGRAM,
            [PROGRAM, *FLAGS, f"--user-data-dir={profile}"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, its_input, 3),
                (os.POSIX_SPAWN_DUP2, its_output, 4),
                (os.POSIX_SPAWN_CLOSE, its_input),
                (os.POSIX_SPAWN_CLOSE, its_output),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
        )
        for its_own in (its_input, its_output):
            os.close(its_own)
        try:
            yield Page(to_browser, from_browser)
        finally:
            for ours in (to_browser, from_browser):
                os.close(ours)
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
