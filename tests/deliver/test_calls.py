"""Answers that are cut: what came of them is never taken for the whole. Large bodies: one is on its way at a time, and answers wait."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from daemon.contract.faults.errors import Retryable
from handlers.deliver.calls import BLOCK, Calls

BODY = b"x" * (BLOCK + 100)
ARRIVALS = threading.Barrier(3)


class _Half(http.server.BaseHTTPRequestHandler):
    """Says the length of the body, and gives so many bytes of it as the path says."""

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: int(self.path[1:])])

    def do_PUT(self) -> None:
        """Answer when so many bodies came as the path says, or cut the connection within the first one."""
        if self.path == "/cut":
            self.rfile.read(BLOCK)
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        met = ARRIVALS.wait(60) if self.path == "/all" else 0
        self.send_response(200)
        self.send_header("Content-Length", str(len(str(met))))
        self.end_headers()
        self.wfile.write(str(met).encode())


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


def test_one_large_body_is_on_its_way_while_answers_of_others_are_waited_for(calls: Calls) -> None:
    under_way, most, lock = 0, list[int](), threading.Lock()

    def body() -> Iterator[bytes]:
        nonlocal under_way
        with lock:
            under_way += 1
            most.append(under_way)
        for _ in range(8):
            yield BODY
        with lock:
            under_way -= 1

    with ThreadPoolExecutor(3) as pool:
        size = {"Content-Length": str(8 * len(BODY))}
        answers = [pool.submit(calls.ask, "send", "PUT", "all", body=body, headers=size) for _ in range(3)]
        assert sorted(answer.result().body for answer in answers) == [b"0", b"1", b"2"]  # the barrier's numbers: all three came first
    assert most == [1, 1, 1]


@pytest.mark.parametrize("body", [BODY * 8, lambda: iter([BODY] * 8)], ids=["bytes", "stream"])
def test_a_body_that_is_cut_does_not_keep_others_from_going(calls: Calls, body: bytes) -> None:
    size = {"Content-Length": str(8 * len(BODY))}
    for _ in range(2):
        with pytest.raises(Retryable, match="can't be reached"):
            calls.ask("send", "PUT", "cut", body=body, headers=size)
    assert calls.ask("send", "PUT", "once", body=body, headers=size).body == b"0"
