"""Whatever an error hits in a thread's loop: the daemon recovers, or ends with a reason that the next start tells. It never lives on dead.

The places are not listed: a run that nothing disturbs says which functions each thread calls, and each of them is made to raise.
"""

from __future__ import annotations

import os
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

from daemon.system import threads
from daemon.system.threads import Owner, Supervised, ThreadDied
from tests.runner.breaking_daemon import ERRORS
from tests.runner.conftest import Toy, copied
from tests.service import ENDED

LOST = 70
LOG = structlog.get_logger("test")
STILL_SECONDS, MOST_SECONDS = 30.0, 180.0
"""How long nothing may move until a daemon is asked why, and how long a case may take at all."""
CASES = int(os.environ.get("BREAK_CASES", "40"))
"""Places tried in each case of the slow set, of some six hundred; 0 for all."""
QUICK = (
    ("runner", "daemon.running.runner", "Runner.run", "OSError", 0),
    ("watch", "daemon.watching.watcher", "Watcher._run", "MemoryError", 1),
)
"""Cases of the quick set: a thread that can't be kept alive, and one that can."""


class Breaking(Toy):
    """A daemon in which functions raise."""

    command = (sys.executable, "-m", "tests.runner.breaking_daemon")


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
            self._current = future
            raise MemoryError
        real(self, future, function, arguments)

    monkeypatch.setattr(Owner, "_do", do)
    assert owner.ask(lambda: 3) == 3
    with pytest.raises(ThreadDied, match="the thread journal died"):
        owner.ask(len, "ab")
    assert owner.ask(len, "abc") == 3 and owner.deaths == 1
    with pytest.raises(TimeoutError):
        owner.ask(_late)
    owner.close()
    with pytest.raises(RuntimeError, match="closed"):
        owner.submit(len, "a")


def _late() -> None:
    raise TimeoutError


def places(toy: Toy, checkpoint: Path) -> list[tuple[str, str, str]]:
    """(thread, module, name) of every function that a thread of an undisturbed daemon calls."""
    trace = toy.folder / "trace.txt"
    toy.environment["BREAK_TRACE"] = str(trace)
    copied(checkpoint, toy)
    toy.start()
    toy.wait_ended()
    assert toy.stop() == 0
    found = [tuple(line.split()) for line in trace.read_text().splitlines()]
    return [(thread, module, name) for thread, module, name in found if not name.endswith("__")]


def judge(toy: Toy, checkpoint: Path, case: tuple[str, str, str, str, int]) -> str:
    """What became of a daemon with this broken in it: "recovered", "ended" or "told"; fails where it lives on dead."""
    toy.environment["BREAK"] = " ".join(map(str, case))
    copied(checkpoint, toy)
    toy.start()
    process = toy.process
    assert process is not None

    def done(value: dict[str, Any]) -> bool:
        return bool(value["jobs"]) and all(job["state"] in ENDED for job in value["jobs"])

    outcome, moved, last = "", "", time.monotonic() + MOST_SECONDS
    end = last
    while not outcome:
        value = toy.status()
        if moved != (moved := str([(one["name"], one["state"], one["attempts"]) for job in value["jobs"] for one in job["stages"]])):
            end = min(last, time.monotonic() + STILL_SECONDS)
        if done(value):
            outcome = "recovered"
        elif process.poll() is not None:
            outcome = "ended"
        elif time.monotonic() > end:
            said = value["daemon"]["unwell"] or value["disks"] or [job["waiting_for"] for job in value["jobs"] if job["waiting_for"]]
            assert said or value["passed_over"], f"{case}: it lives on dead and says nothing\n{toy.log()[-3000:]}"
            outcome = "told"
        time.sleep(0.1)
    if outcome == "ended":
        assert process.returncode in (LOST, 1, 75), f"{case}: {process.returncode}\n{toy.log()[-3000:]}"
        assert "Could not" in toy.log() or "died of an error" in toy.log(), toy.log()[-3000:]
        told = process.returncode == LOST
    else:
        toy.kill()
        told = False
    # Another daemon goes on where this one was.
    del toy.environment["BREAK"]
    toy.start()
    if told:
        value = toy.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["verdict"], 60)
        assert value["last_end"] is not None and "Could not go on" in value["last_end"]["why"], value["last_end"]
        assert "ended by itself" in toy.log()
    jobs = toy.wait_ended(seconds=60)
    assert [job["state"] for job in jobs] in (["succeeded"], ["failed"], ["partial"]), f"{case}: {jobs}"
    assert toy.stop() == 0
    assert toy.status()["last_end"] is None
    return outcome


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case[0]}-{case[3]}")
def test_a_thread_that_dies_recovers_or_the_daemon_ends_with_a_reason(
    tmp_path: Path, pico_checkpoint: Path, case: tuple[str, str, str, str, int]
) -> None:
    toy = Breaking(tmp_path)
    try:
        outcome = judge(toy, pico_checkpoint, case)
    finally:
        if toy.process is not None and toy.process.poll() is None:
            toy.kill()
    assert outcome == ("ended" if case[4] == 0 else "recovered")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("times", [1, 0], ids=["once", "always"])
def test_at_every_place_of_every_threads_loop_it_recovers_or_ends_with_a_reason(tmp_path: Path, pico_checkpoint: Path, times: int) -> None:
    generator = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    (tmp_path / "trace").mkdir()
    found = places(Breaking(tmp_path / "trace"), pico_checkpoint)
    assert {"runner", "watch", "notify", "journal"} <= {thread for thread, _, _ in found}
    found = generator.sample(found, CASES) if CASES else found
    outcomes = []
    for number, (thread, module, name) in enumerate(found):
        folder = tmp_path / f"case-{number}"
        folder.mkdir()
        toy = Breaking(folder, extra="[limits]\nretry_seconds = 0.1\ncrashes = 100\n")
        case = (thread, module, name, generator.choice(list(ERRORS)), times)
        print(case)
        try:
            outcomes.append(judge(toy, pico_checkpoint, case))
        finally:
            if toy.process is not None and toy.process.poll() is None:
                toy.kill()
        print(outcomes[-1])
