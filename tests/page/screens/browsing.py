"""A real browser that visits the pages: at a width, light or dark, in a language, with or without scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from handlers.web.browser import chromium
from handlers.web.browser.chromium import Chromium

LOCAL = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
SECONDS = 60.0


class Tab:
    """One tab. `errors`: what the browser complains of, violations of the policy included; `asked`: every address that it asked for."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.asked: list[str] = []
        self._loaded = False
        self._browser = Chromium(self._heard)
        target = self._browser.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = str(self._browser.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        for domain in ("Runtime", "Page", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def _heard(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(str(facts["exceptionDetails"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.errors.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.asked.append(facts["request"]["url"])
        elif event == "Page.loadEventFired":
            self._loaded = True

    def ask(self, method: str, **facts: Any) -> Any:
        return self._browser.ask(method, facts, self._session)

    def look_like(self, width: int, *, dark: bool = False, chinese: bool = False, script: bool = True, paper: bool = False) -> None:
        """What the next page is opened with."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not script)
        language = "zh-CN,zh;q=0.9,en;q=0.5" if chinese else "en-GB,en;q=0.9"
        self.ask("Network.setExtraHTTPHeaders", headers={"Accept-Language": language})

    def open(self, address: str) -> None:
        self._loaded = False
        self.ask("Page.navigate", url=address)
        limit = time.monotonic() + SECONDS
        while not self._loaded:
            assert time.monotonic() < limit, address
            self.ask("Page.getFrameTree")
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        limit = time.monotonic() + SECONDS
        while not self.run(expression):
            assert time.monotonic() < limit, (expression, self.errors)
            time.sleep(0.05)

    def close(self) -> None:
        self._browser.close()


@contextmanager
def browsing() -> Iterator[Tab]:
    """A browser that reaches this machine alone."""
    arguments = tuple(LOCAL if part.startswith("--host-resolver-rules") else part for part in chromium._ARGUMENTS)
    with mock.patch.object(chromium, "_ARGUMENTS", arguments):
        tab = Tab()
    try:
        yield tab
    finally:
        tab.close()
