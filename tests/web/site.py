"""A web server with published folders and the packages of npm, and a browser that visits it, as people do."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from handlers.web.browser import chromium
from handlers.web.browser.chromium import Chromium

LOCAL = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
SECONDS = 120.0


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


class Visit:
    """One page in a browser."""

    def __init__(self, home: str, asked: list[str]) -> None:
        self._home, self.asked = home, asked
        self.errors: list[str] = []
        self._browser = Chromium(self._heard)
        target = self._browser.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = str(self._browser.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        self._browser.ask("Runtime.enable", {}, self._session)

    def _heard(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(facts))

    def open(self, path: str) -> str:
        """Open a page of a published folder; what it says when it is ready."""
        self._browser.ask("Page.navigate", {"url": self._home + path}, self._session)
        self.wait("document.body?.dataset.ready === 'yes'")
        return str(self.run("document.getElementById('status').textContent"))

    def wait(self, expression: str) -> None:
        limit = time.monotonic() + SECONDS
        while not self.run(expression):
            assert time.monotonic() < limit, (expression, self.errors)
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        facts = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        told = self._browser.ask("Runtime.evaluate", facts, self._session)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def answer(self, **fields: Any) -> str:
        """Fill in the page's form, send it, and give what comes."""
        for name, value in fields.items():
            key = "checked" if isinstance(value, bool) else "value"
            self.run(f"form.elements[{name!r}].{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}")
        self.run("form.requestSubmit()")
        self.wait("/^Done|wrong/.test(status_text = document.getElementById('status').textContent)")
        return str(self.run("document.getElementById('answer').textContent"))

    def close(self) -> None:
        self._browser.close()


@contextmanager
def visited(site: Path) -> Iterator[Visit]:
    """A server for the folder `site`, and a visit there."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(site)))
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    arguments = tuple(LOCAL if one.startswith("--host-resolver-rules") else one for one in chromium._ARGUMENTS)
    try:
        with mock.patch.object(chromium, "_ARGUMENTS", arguments):
            visit = Visit(f"http://127.0.0.1:{server.server_port}/", server.asked)  # type: ignore[attr-defined]
        try:
            yield visit
        finally:
            visit.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
