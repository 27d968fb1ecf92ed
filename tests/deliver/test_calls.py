"""Answers that are cut: what came of them is never taken for the whole."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from daemon.contract.faults.errors import Retryable
from handlers.deliver.calls import BLOCK, Calls

BODY = b"x" * (BLOCK + 100)


class _Half(http.server.BaseHTTPRequestHandler):
    """Says the length of the body, and gives so many bytes of it as the path says."""

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: int(self.path[1:])])


@pytest.fixture
def calls() -> Iterator[Calls]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Half) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        calls = Calls(f"http://127.0.0.1:{server.server_address[1]}")
        yield calls
        calls.close()
        server.shutdown()


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 99])
def test_a_cut_answer_may_pass(calls: Calls, count: int) -> None:
    with pytest.raises(Retryable, match="can't be reached"):
        calls.ask("read", "GET", str(count))
    with pytest.raises(Retryable, match="can't be reached"):
        list(calls.stream("read", str(count)))


def test_a_whole_answer_is_whole(calls: Calls) -> None:
    assert calls.ask("read", "GET", str(len(BODY))).body == BODY == b"".join(calls.stream("read", str(len(BODY))))
    assert calls.ask("read", "GET", str(len(BODY)), most=10).body == BODY[:10]
