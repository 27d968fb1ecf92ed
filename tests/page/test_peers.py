"""Other daemons on one page: what they answered last, and for how long one has not; nothing that a peer does holds this daemon up."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daemon.page import peers
from tests.page.conftest import TOKEN, Site, wait_until

Make = Callable[..., Site]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ROUND_SECONDS", 0.2)
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 2.0)


def first(site: Site) -> dict[str, Any]:
    value: dict[str, Any] = site.ask("/api/v1/peers").json["peers"][0]
    return value


def test_a_peers_jobs_are_shown_and_marked_with_their_age_when_it_answers_no_more(make_site: Make, tmp_path: Any) -> None:
    other = make_site(jobs=5, waiting=2, token=TOKEN)
    (tmp_path / "tokens").write_text(f"# of the others\n{other.origin} {TOKEN}\n")
    site = make_site(peers=[other.origin], peer_tokens=tmp_path / "tokens")
    wait_until(lambda: first(site)["status"])
    known = first(site)
    assert known["problem"] is None and known["status"]["counts"] == {"pending": 2, "succeeded": 3} and known["age_seconds"] < 5
    other.page.stop()
    wait_until(lambda: first(site)["problem"])
    then = first(site)
    assert then["status"] == known["status"] and then["problem"] == "it can't be reached: Connection refused"
    wait_until(lambda: first(site)["age_seconds"] > then["age_seconds"] + 0.5)


def test_what_a_peer_said_is_remembered_when_the_page_is_configured_anew(make_site: Make) -> None:
    other = make_site(jobs=5)
    site = make_site(peers=[other.origin])
    wait_until(lambda: first(site)["status"])
    origin = other.origin
    other.page.stop()
    site.page.adopt(site.with_page(listen="127.0.0.1:0", peers=(origin,), hosts=("box.example.org",)))
    wait_until(lambda: site.is_up)
    wait_until(lambda: "reached" in (first(site)["problem"] or ""))
    assert first(site)["status"]["counts"] == {"succeeded": 5} and first(site)["at"]


def test_a_peer_that_wants_another_token_is_named_so(make_site: Make) -> None:
    other = make_site(token=TOKEN)
    site = make_site(peers=[other.origin])
    wait_until(lambda: "wants a token" in (first(site)["problem"] or ""))
    assert TOKEN not in str(first(site))


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that does something odd with each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_odd, args=(answer, client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _odd(answer: Callable[[socket.socket], object], client: socket.socket) -> None:
    with client, contextlib.suppress(OSError):
        client.recv(4096)
        answer(client)


def _endless(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def _dripping(client: socket.socket) -> None:
    while True:
        client.sendall(b"H")
        time.sleep(0.1)


ODD: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "endless": (_endless, "more than 1 MiB"),
    "dripping": (_dripping, ""),
    "silent": (lambda client: time.sleep(30), "no answer within"),
    "a redirect": (
        lambda client: client.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), "302",
    ),
    "garbage": (lambda client: client.sendall(b"\0\1\2\r\n\r\n"), "can't be reached"),
    "no JSON": (lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[[["), "none of a ckptd"),
    "other JSON": (lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[[]]"), "none of a ckptd"),
    "many values": (
        lambda client: client.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + b'{"daemon":{},"x":[' + b"{}," * 299_993 + b"0]}"
        ),
        "none of a ckptd",
    ),
    "half": (lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{"), "reached"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_what_a_peer_does_is_said_and_holds_nothing_up(make_site: Make, kind: str) -> None:
    answer, said = ODD[kind]
    with answering(answer) as address:
        site = make_site(peers=[address])
        wait_until(lambda: (first(site)["problem"] or "").count("not been asked") == 0)
        assert said in first(site)["problem"] and first(site)["status"] is None
        assert site.ask("/api/v1/status").status == 200


def test_why_a_peer_can_not_be_reached_is_in_words_that_are_translated(make_site: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    site = make_site(peers=[address])
    wait_until(lambda: "reached" in (first(site)["problem"] or ""))
    chinese = site.ask("/boxes", Accept_Language="zh-CN").body.decode()
    assert "\u8fde\u63a5\u88ab\u62d2\u7edd" in chinese and "onnect" not in chinese.partition("<main")[2]


def test_text_that_no_page_can_hold_and_values_of_other_types_break_no_page(make_site: Make) -> None:
    odd = "\ud800"
    body = json.dumps({
        "version": odd, "daemon": {"running": True, "verdict": f"{odd}\u202e\x1b[2J", "unwell": [odd, 1] * 5000},
        "counts": {odd: 7, "failed": True, "x": []},
        "jobs": [1, None, {"state": ["running"]}, {"state": "running", "run": odd, "activity": {}, "step": "x", "left_seconds": 1e308}],
    }).encode()  # fmt: skip
    with answering(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)) as address:
        site = make_site(peers=[address])
        wait_until(lambda: first(site)["status"])
        page = site.ask("/boxes", Accept="text/html")
        assert page.status == 200 and "?: 7" in page.body.decode() and len(page.body) < 100_000
        assert not {"\u202e", "\x1b"} & set(page.body.decode()), "nor moves what stands around it"


def test_an_address_that_no_connection_can_be_made_of_keeps_no_other_from_being_asked(
    make_site: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_site(jobs=1)
    odd = "http://a..b:1"
    with monkeypatch.context() as before:  # as a configuration of a version that did not look at it
        before.setattr("daemon.config.page._no_peer", lambda peer: None)
        site = make_site(peers=[odd, other.origin])

    def second() -> dict[str, Any]:
        value: dict[str, Any] = site.ask("/api/v1/peers").json["peers"][1]
        return value

    wait_until(lambda: second()["at"])
    asked = second()["at"]
    wait_until(lambda: second()["at"] != asked)
    assert "can't be reached" in first(site)["problem"]


def test_a_name_that_nobody_looks_up_takes_a_thread_of_its_own_and_never_two(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 0.3)
    look_up, answered, asked = socket.getaddrinfo, threading.Event(), list[object]()

    def hang(host: object, *rest: Any, **named: Any) -> Any:
        if not str(host).endswith(".example"):
            return look_up(host, *rest, **named)  # type: ignore[arg-type]
        asked.append(host)
        answered.wait(60)
        raise OSError("no name")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    other = make_site()
    names = [f"http://silent-{number}.example" for number in range(6)]
    site = make_site(peers=[other.origin, *names])
    try:
        wait_until(lambda: all(peer["problem"] and "no answer" in peer["problem"] for peer in site.ask("/api/v1/peers").json["peers"][1:]))
        age = first(site)["at"]
        wait_until(lambda: first(site)["at"] != age)  # rounds later
        assert first(site)["problem"] is None and site.ask("/api/v1/status").status == 200
        assert len(asked) == len(names)
    finally:
        answered.set()
