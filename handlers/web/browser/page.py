"""One page in a browser that holds one folder's model, loaded by transformers.js; it is asked in JSON and arrays.

Called by the engines of the formats `web…`. The page sees the folder, the toolchain's packages of npm, and its own script, each below
a path of its own; every request that it makes is answered here, so that there is no server, no port and no network.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from daemon.contract.values import Json
from handlers.web.browser.chromium import BrowserError, Chromium
from handlers.web.browser.files import HOST, Files

PIECE = 24 << 20
"""Bytes of an array that are read at a time; one message to the browser has a greatest length."""
DTYPES = {"float32": np.float32, "float16": np.float16, "float64": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
INLINE = 1 << 16
"""Bytes of an array up to which it is sent in the question itself."""


class Held:
    """An array of the page's, in the manner of onnxruntime's values. It lies there until nobody holds it here, or came with the answer."""

    def __init__(self, page: Page, reply: Json) -> None:
        self._page, self.type, self._data = page, str(reply["type"]), reply.get("data")
        self._shape, self._bytes = [int(size) for size in reply["shape"]], int(reply["bytes"])
        self.number = int(reply.get("held", 0))
        if self.number:
            weakref.finalize(self, page.dropped.append, self.number)

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._shape)

    def numpy(self) -> np.ndarray:
        """A copy of it."""
        if self._data is None:
            starts = range(0, self._bytes, PIECE)
            texts = [self._page.ask("read", number=self.number, start=start, end=min(self._bytes, start + PIECE)) for start in starts]
        else:
            texts = [self._data]
        return np.frombuffer(bytearray(b"".join(map(base64.b64decode, texts))), DTYPES[self.type]).reshape(self._shape)

    def feed(self) -> Json:
        """As an input of the page's."""
        return {"held": self.number} if self.number else {"data": self._data, "type": self.type, "shape": self._shape}


class Page:
    """A browser with one page. Close it."""

    def __init__(self, folder: Path, packages: Path) -> None:
        """`folder`: the published one. `packages`: a node_modules. Raises BrowserError, or Permanent where there is no browser."""
        self._files = Files({"model": folder, "packages": packages, "page": Path(__file__).parent})
        self._numbers = itertools.count(1)
        self._session, self._crashed = "", ""
        self.dropped: list[int] = []
        self._errors: list[str] = []
        self.browser = Chromium(self._heard)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        target = self.browser.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = str(self.browser.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        for method, facts in (("Fetch.enable", {"patterns": [{"urlPattern": "*"}]}), ("Runtime.enable", {}), ("Inspector.enable", {})):
            self.browser.ask(method, facts, self._session)
        self.browser.ask("Page.navigate", {"url": f"{HOST}/page/page.html"}, self._session)
        waits = "new Promise((done) => { const look = () => globalThis.ready ? done(true) : setTimeout(look, 20); look(); })"
        self._evaluate(waits, seconds=120.0)

    def ask(self, command: str, **facts: Any) -> Any:
        """What the page's `command` gives. Raises BrowserError with what went wrong there."""
        numbers, self.dropped[:] = list(self.dropped), []
        return json.loads(self._evaluate(f"ask({json.dumps(command)}, {json.dumps(facts)}, {json.dumps(numbers)})"))

    def run(
        self, session: str, feeds: Mapping[str, np.ndarray | Held], outputs: Sequence[str], kept: Sequence[str] = ()
    ) -> dict[str, Held]:
        """Run a session; `kept`: which outputs stay in the page, since they will be fed again."""
        sent = {name: value.feed() if isinstance(value, Held) else self._sent(value) for name, value in feeds.items()}
        try:
            reply = self.ask("run", session=session, feeds=sent, outputs=list(outputs), kept=list(kept))
        finally:
            self._files.inbox.clear()
        return {name: Held(self, reply[name]) for name in outputs}

    def _sent(self, array: np.ndarray) -> Json:
        facts: Json = {"type": array.dtype.name, "shape": list(array.shape)}
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if data.size <= INLINE:
            return {**facts, "data": base64.b64encode(data.tobytes()).decode()}
        number = str(next(self._numbers))
        self._files.inbox[number] = data.tobytes()
        return {**facts, "inbox": number}

    def _evaluate(self, expression: str, seconds: float = 1800.0) -> Any:
        facts = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        reply = self.browser.ask("Runtime.evaluate", facts, self._session, seconds)
        if "exceptionDetails" in reply:
            raise BrowserError(_reason(reply["exceptionDetails"]))
        return reply["result"].get("value")

    def _heard(self, event: str, facts: Json) -> None:
        if event == "Fetch.requestPaused":
            self._answer(str(facts["requestId"]), str(facts["request"]["url"]))
        elif event in ("Inspector.targetCrashed", "Target.targetCrashed"):
            raise BrowserError("the page crashed, which a browser's pages do when memory runs out (alloc)")
        elif event == "Runtime.exceptionThrown":
            raise BrowserError(_reason(facts["exceptionDetails"]))

    def _answer(self, request: str, address: str) -> None:
        content = self._files.fetch(address)
        if content is None:
            self.browser.send("Fetch.fulfillRequest", {"requestId": request, "responseCode": 404}, self._session)
            return
        body, kind = content
        headers = [{"name": "Content-Type", "value": kind}, {"name": "Cache-Control", "value": "no-store"}]
        facts = {"requestId": request, "responseCode": 200, "responseHeaders": headers, "body": base64.b64encode(body).decode()}
        self.browser.send("Fetch.fulfillRequest", facts, self._session)

    def peak_bytes(self) -> int:
        """Largest resident set of the process of the page so far, as far as it still runs."""
        with contextlib.suppress(psutil.Error):
            return max(map(_high_water, psutil.Process(self.browser.process.pid).children(recursive=True)), default=0)
        return 0

    def close(self) -> None:
        """End the browser; safe to call again."""
        self.browser.close()


def _reason(details: Json) -> str:
    said = str(details.get("exception", {}).get("description") or details.get("text") or "an unknown error").strip()
    return f"the page says: {said.splitlines()[0][:600]}"


def _high_water(process: psutil.Process) -> int:
    with contextlib.suppress(OSError, psutil.Error):
        for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
