"""A headless Chromium controlled over a pipe, without a port or a driver program.

It is started as `chromium --headless --remote-debugging-pipe`, speaks the DevTools protocol on two file descriptors,
and keeps its profile in a folder of the test. The executable is $CHROME, or the first of `NAMES` on the path
(`apt-get install chromium`).
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    # root in a container cannot use the sandbox; the page is our own file
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    # block all host names
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
# the browser expects its pipe at descriptors 3 and 4
_START = "import os, sys; os.dup2({read}, 3); os.dup2({write}, 4); os.execvp(sys.argv[1], sys.argv[1:])"
_PATIENCE = 30.0
# the centre of an element that is in view and has not moved for three frames
_STILL = """(async () => {
  const element = document.querySelector(%s);
  const frame = () => new Promise(requestAnimationFrame);
  let [before, still] = ["", 0];
  while (still < 3) {
    element.scrollIntoView({ block: "center", behavior: "instant" });
    await frame();
    const box = element.getBoundingClientRect();
    const now = [box.x + box.width / 2, box.y + box.height / 2];
    still = String(now) === before ? still + 1 : 0;
    before = String(now);
    if (still === 3) return now;
  }
})()"""


def find_browser() -> str | None:
    """The executable, if there is one."""
    given = os.environ.get("CHROME")
    return given or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a browser; use it in a `with` block."""

    def __init__(self, executable: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # not 3 and 4, which are overwritten
        ends = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (theirs_in, theirs_out)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(read=ends[0], write=ends[1]), executable, *_FLAGS,
             f"--user-data-dir={profile}"],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for descriptor in (theirs_in, theirs_out, *ends):
            os.close(descriptor)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of a given size, and wait until it is drawn."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + _PATIENCE
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} must be true within {_PATIENCE:.0f} s, got false.")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Click at the centre of an element once it no longer moves."""
        where = self.run(_STILL % json.dumps(selector))
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key on the focused element."""
        codes = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option and send the change event."""
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def screenshot(self, path: Path) -> Path:
        """Save the window as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path

    def _note(self, event: dict[str, Any]) -> None:
        what = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(what["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.complaints.append(str(what["entry"]["text"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser has ended with {self._process.wait(_PATIENCE)}.")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
