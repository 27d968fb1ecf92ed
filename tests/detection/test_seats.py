"""Threads that pin side by side: one of them at a time runs Python, and no wait of one keeps the others from it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import make_pin
from daemon.journal.file.database import Database
from daemon.system.processes import seats
from daemon.system.processes.seats import SEATS, Seats
from daemon.watching.apart import Hands, Pending
from daemon.watching.taking.turns import Turns

WAIT = 60.0


def begin(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def sit(place: Seats, came: threading.Event) -> None:
    with place.taken():
        came.set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets the seat for the time alone that another thread has had it."""
    monkeypatch.setattr(seats, "LONG_SECONDS", 10 * WAIT)


@pytest.mark.usefixtures("patient")
def test_it_is_had_by_one_thread_and_left_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    place, came, asked = Seats(), threading.Event(), threading.Event()
    wait = place._changed.wait

    def waits(seconds: float) -> bool:
        asked.set()
        return wait(seconds)

    monkeypatch.setattr(place._changed, "wait", waits)
    with place.taken():
        begin(lambda: sit(place, came))
        assert asked.wait(WAIT) and not came.is_set()
        with place.left():
            assert came.wait(WAIT)
    assert place._since == {}


def test_whoever_has_it_for_long_keeps_nobody_from_it() -> None:
    place, came = Seats(), threading.Event()
    with place.taken():
        begin(lambda: sit(place, came))
        assert came.wait(WAIT)
    with place.left():  # nor does a thread without it wait for it
        assert place._since == {}


@pytest.mark.usefixtures("patient")
def test_an_error_leaves_it_free() -> None:
    place, came = Seats(), threading.Event()
    with pytest.raises(OSError), place.taken(), place.left():
        raise OSError
    sit(place, came)
    assert came.is_set()


@pytest.mark.usefixtures("patient")
def test_a_pin_leaves_it_while_the_disk_makes_its_files_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, came = tmp_path / "checkpoint-1", threading.Event()
    checkpoint.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (checkpoint / name).write_bytes(b"x")
    monkeypatch.setattr(os, "fsync", lambda descriptor: begin(lambda: sit(SEATS, came)) and came.wait(WAIT))
    with SEATS.taken():
        make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
        assert came.is_set()


@pytest.mark.usefixtures("patient")
def test_a_question_to_the_journal_leaves_it(tmp_path: Path) -> None:
    database, came = Database(tmp_path / "journal.sqlite3"), threading.Event()
    try:
        begin(lambda: database.together(lambda: came.wait(WAIT)))
        with SEATS.taken():
            begin(lambda: sit(SEATS, came))
            assert database.read("SELECT count(*) FROM job")[0][0] == 0
            assert came.is_set()
    finally:
        database.close()


@pytest.mark.usefixtures("patient")
def test_who_waits_for_the_keys_of_another_thread_leaves_it() -> None:
    turns, has, wanted, came = Turns(), threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns.holding(frozenset({"content a"})):
            has.set()
            wanted.wait(WAIT)
            begin(lambda: sit(SEATS, came))
            came.wait(WAIT)

    begin(hold)
    assert has.wait(WAIT)
    with SEATS.taken():
        wanted.set()
        with turns.holding(frozenset({"content a"})):
            assert came.is_set()


def test_what_is_done_apart_has_it(tmp_path: Path) -> None:
    ended = threading.Event()
    hands = Hands(lambda path: ended.set())

    def ask() -> object:
        return hands.do(tmp_path, tmp_path / "checkpoint-1", "state", lambda number: threading.get_ident() in SEATS._since)

    with pytest.raises(Pending):
        ask()
    assert ended.wait(WAIT) and ask() is True
    assert hands.stop(WAIT) and SEATS._since == {}
