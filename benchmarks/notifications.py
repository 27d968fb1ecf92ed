"""How long thousands of notifications take to a service that is slow to answer, and whether one that never answers delays the others.

The journal, the notifier and the process that sends are the real ones; the services are HTTP servers on the loopback. A service gets its
messages one after the other, in order, so that `seconds` can't be less than the number of messages times what the service takes for one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structlog

from benchmarks import _common
from daemon.config.settings import NotifySettings
from daemon.journal.journal import Journal
from daemon.journal.outbox import enter_message
from daemon.journal.rows import Notice
from daemon.publishing.telling.notifier import Notifier

LONGEST = 1800.0
"""Seconds after which a measurement is given up."""
DRIP_SECONDS = 1.0
"""Between two bytes of an answer that never ends: no limit of a single read ends the call."""


@dataclass
class Service:
    """A service on the loopback that takes `seconds` for an answer; None: its answer never ends."""

    seconds: float | None
    taken: list[float] = field(default_factory=list)
    """When each message was answered, seconds of the monotonic clock."""
    asked: int = 0
    connections: set[int] = field(default_factory=set)
    """Ports from which messages came."""

    def __post_init__(self) -> None:
        service = self
        self._ending = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                service.asked += 1
                service.connections.add(self.client_address[1])
                if service.seconds is None:
                    return self.drip()
                time.sleep(service.seconds)
                service.taken.append(time.monotonic())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def drip(self) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
                try:
                    while not service._ending.wait(DRIP_SECONDS):
                        self.wfile.write(b".")
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"json://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()


def deliver(folder: Path, services: Sequence[Service], counts: Sequence[int]) -> list[float]:
    """Seconds until each service that answers has taken so many messages, all entered at the same time; its own alone are for it.

    Raises RuntimeError where that takes longer than LONGEST.
    """
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.sqlite3")
    notifier = Notifier(NotifySettings(urls=tuple(service.url for service in services)), journal)
    notifier.start()
    began = time.monotonic()
    try:
        enter(journal, list(notifier._targets), counts)
        notifier.wake()
        while any(service.seconds is not None and len(service.taken) < count for service, count in zip(services, counts, strict=True)):
            if time.monotonic() - began > LONGEST:
                raise RuntimeError(f"after {LONGEST:.0f} s the services have {[len(service.taken) for service in services]} messages")
            time.sleep(0.02)
    finally:
        notifier.stop()
        journal.close()
    return [service.taken[-1] - began if service.taken else 0.0 for service in services]


def enter(journal: Journal, targets: Sequence[str], counts: Sequence[int]) -> None:
    """Enter messages in one transaction: so many for each target (digest)."""

    def write(c: Any) -> None:
        for number in range(max(counts)):
            enter_message(c, "", Notice("succeeded", f"message {number}", "An export ended.\n" * 10))
        for target, count in zip(targets, counts, strict=True):
            c.execute("DELETE FROM delivery WHERE target = ? AND message > ?", (target, count))

    journal.database.write("bench", write)


def beside(folder: Path, hanging: bool, count: int) -> dict[str, float]:
    """Seconds for `count` messages to a quick service and to one that takes 0.1 s, alone or beside one that never answers."""
    services = [Service(0.0), Service(0.1), *([Service(None)] if hanging else [])]
    try:
        quick, slow, *_ = deliver(folder, services, [count] * len(services))
        return {"quick": quick, "slow": slow, "asked": float(services[-1].asked)}
    finally:
        for service in services:
            service.close()


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("How long many notifications take.")
    parser.add_argument("--messages", type=int, default=200, help="messages to the slow service")
    parser.add_argument("--answer", type=float, default=0.25, help="seconds that it takes for each")
    parser.add_argument("--beside", type=int, default=300, help="messages beside a service that never answers; 0: leave that out")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    figures = dict[str, Any]()
    with _common.scratch("notifications") as folder:
        slow = Service(options.answer)
        (seconds,) = deliver(folder / "slow", [slow], [options.messages])
        slow.close()
        figures |= {
            "messages": options.messages, "answer_s": options.answer, "seconds": round(seconds, 1),
            "over_answers": round(seconds / (options.messages * options.answer), 3), "connections": len(slow.connections),
            "own_ms": round(1000 * (seconds / options.messages - options.answer), 1),
        }  # fmt: skip
        if options.beside:
            alone, hung = beside(folder / "alone", False, options.beside), beside(folder / "beside", True, options.beside)
            figures |= {f"{name}_beside_hanging": round(hung[name] / alone[name], 2) for name in ("quick", "slow")}
            figures |= {f"{name}_alone_s": round(alone[name], 1) for name in ("quick", "slow")}
            figures["hanging_asked"] = int(hung["asked"])
    _common.write("notifications", figures, options.json, libraries=("apprise", "requests"))


if __name__ == "__main__":
    main()
