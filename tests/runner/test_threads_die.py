"""Whatever an error hits in a thread's loop: the daemon recovers, or ends with a reason that the next start tells. It never lives on dead.

What an error may lead to is said in `tests.runner.breaking`.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from daemon.system.processes import threads
from daemon.system.processes.threads import Owner, Supervised, ThreadDied
from tests.runner.breaking import Breaking, Case, Place, Sweep, always, cases_of, once, places
from tests.sampling import some

LOG = structlog.get_logger("test")
CASES = int(os.environ.get("BREAK_CASES", "100"))
"""Cases of the slow set, of some seven hundred places with seven errors each, once and always; 0: every place once, with one error each."""
SEED = int(os.environ.get("BREAK_SEED", "0"))
"""0: another one at every run. It is printed."""
QUICK = (
    (Case(Place("runner", "daemon.running.runner", "Runner.run"), "OSError", 0), "ended"),
    (Case(Place("watch", "daemon.watching.watcher", "Watcher._run"), "MemoryError", 1), "recovered"),
    (Case(Place("MainThread", "daemon.operating.service", "Daemon._look_at_journal"), "SystemExit", 1), "ended"),
    (Case(Place("MainThread", "daemon.operating.service", "Daemon._make_ticks", reload=True), "OSError", 1), "recovered"),
)
"""Cases of the quick set: a thread that can't be kept alive, one that can, the first thread, which ends in any case, and a reload that
fails when the threads of before are stopped."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FIRST_PAUSE", 0.001)


def wait(condition: Callable[[], object], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def test_a_thread_that_dies_begins_again_and_says_why_in_a_sentence() -> None:
    errors: list[BaseException] = [OSError(5, "made to fail"), MemoryError(), SystemExit(3)]
    done = threading.Event()

    def work() -> None:
        if errors:
            raise errors.pop(0)
        done.set()

    one = Supervised("runner", work, LOG)
    with capture_logs() as logs:
        one.start()
        assert done.wait(10)
        one.join(10)
    assert [record["event"] for record in logs] == [
        "The thread runner died of an error: OSError: [Errno 5] made to fail. It begins again.",
        "The thread runner died of an error, again: MemoryError. It begins again.",
        "The thread runner died of an error, for the third time: SystemExit: 3. It begins again.",
    ]
    assert [death.count for death in one.deaths] == [1, 2, 3] and one.given_up is None and not one.revive()


def test_a_thread_that_dies_again_and_again_is_given_up_and_still_ends_in_order() -> None:
    stopped, ended, lost = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        if not stopped.is_set():
            raise RuntimeError("a bug")
        ended.set()

    one = Supervised("watch", work, LOG, stop=stopped.set)
    one.lost = lost.set
    one.start()
    assert lost.wait(10) and ended.is_set()
    one.join(10)
    assert one.given_up is not None and one.given_up.count == threads.MOST_DEATHS and not one.revive() and not one.is_alive()


def test_a_thread_that_is_gone_without_a_word_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, stop = [], threading.Event()

    def work() -> None:
        begun.append(threading.get_ident())
        stop.wait()

    one = Supervised("notify", work, LOG)
    one._thread = threading.Thread(target=lambda: None)  # as if the interpreter had given it up
    one.start()
    one._thread.join()
    assert one.revive() and wait(lambda: begun) and one.is_alive()
    stop.set()
    one.join(10)
    one._live = lambda: None  # type: ignore[method-assign]  # every further one ends the same way
    one._ended = False
    assert wait(lambda: not one.is_alive() and not one.revive() and one.given_up)


def test_an_owner_whose_thread_dies_says_so_to_who_waits_and_does_the_rest_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOK_SECONDS", 0.01)
    owner, real, hits = Owner("journal"), Owner._do, []

    def do(self: Owner, future: Any, function: Any, arguments: Any) -> None:
        if function is len and not hits:
            hits.append(1)
            raise MemoryError  # at once, before it has done anything
        real(self, future, function, arguments)

    monkeypatch.setattr(Owner, "_do", do)
    assert owner.ask(lambda: 3) == 3
    with pytest.raises(ThreadDied, match="the thread journal died"):
        owner.ask(len, "ab")
    assert owner.ask(len, "abc") == 3 and owner.deaths == 1
    with pytest.raises(TimeoutError):
        owner.ask(_late)
    with pytest.raises(ThreadDied, match="was to end: SystemExit: 3"):
        owner.ask(sys.exit, 3)  # it must not end the thread that asks
    assert owner.ask(len, "abc") == 3
    owner.close()
    with pytest.raises(RuntimeError, match="closed"):
        owner.submit(len, "a")


def _late() -> None:
    raise TimeoutError


class _Watched(queue.SimpleQueue[Any]):
    """A queue whose last call is taken before whoever put it goes on."""

    thread: threading.Thread | None = None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        if item is None and self.thread is not None:
            self.thread.join(20)


def test_a_thread_that_ends_at_once_when_it_is_closed_is_not_waited_for_twice() -> None:
    owner = Owner("journal")
    owner._calls = calls = _Watched()
    assert owner.ask(lambda: 3) == 3
    calls.thread = owner._thread
    closing = threading.Thread(target=owner.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive() and owner.deaths == 0


@pytest.mark.parametrize(("case", "outcome"), some(QUICK, of=4), ids=lambda value: value.place.name if isinstance(value, Case) else value)
def test_a_thread_that_dies_recovers_or_the_daemon_ends_with_a_reason(
    tmp_path: Path, pico_checkpoint: Path, case: Case, outcome: str
) -> None:
    toy = Breaking(tmp_path, [case])
    try:
        assert (once(toy, pico_checkpoint) if case.times else always(toy, pico_checkpoint, stop=False)) == outcome
        assert toy.raised == (case,)
    finally:
        toy.discard()


@pytest.mark.slow
@pytest.mark.timeout(14400)
def test_at_every_place_of_every_thread_an_error_is_survived_or_told(tmp_path: Path, pico_checkpoint: Path) -> None:
    generator = random.Random(seed := SEED or random.randrange(10**6))
    print(f"seed={seed}")
    found = places(pico_checkpoint, tmp_path)
    assert {"MainThread", "runner", "watch", "notify", "journal"} <= {place.thread for place in found}
    sweep = Sweep(pico_checkpoint, tmp_path, generator)
    sweep.run(itertools.islice(cases_of(found, generator), CASES or len(found)))
    print(f"seed={seed}: {sweep.summary()}")
    assert not sweep.failures, sweep.summary()
