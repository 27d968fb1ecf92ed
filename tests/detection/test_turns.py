"""Threads that enter checkpoints side by side: no content and no place is given twice, and none of them waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from daemon.watching.taking.turns import Turns

WAIT = 60.0


class Desk:
    """A journal that is read and written slowly, and what enters into it as the intake does."""

    def __init__(self, seed: int) -> None:
        self.turns, self.places, self.contents = Turns(), list[str](), list[str]()
        self._rng, self._lock = random.Random(seed), threading.Lock()

    def pause(self) -> None:
        with self._lock:
            seconds = self._rng.choice((0, 0, 0.001, 0.003))
        time.sleep(seconds)

    def enter(self, content: str, folders: Sequence[str]) -> None:
        """Enter this content once, at the next free number in the folder that has the fewest."""
        with self.turns.holding(frozenset({f"content {content}"})) as turn:
            while True:
                turn.begin()
                contents, places = list(self.contents), list(self.places)
                self.pause()
                if content in contents:
                    return
                counts = Counter(place.split("/")[0] for place in places)
                folder = min(folders, key=lambda name: (counts[name], name))
                if turn.has(f"folder {folder}"):
                    break
            self.pause()
            self.places.append(f"{folder}/{counts[folder]}")
            self.contents.append(content)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_given_twice_and_everybody_gets_a_turn(seed: int) -> None:
    rng, desk = random.Random(seed), Desk(seed)
    wanted = [(f"{rng.randrange(8)}", rng.sample(("a", "b", "c"), rng.randint(1, 3))) for _ in range(16)]
    threads = [threading.Thread(target=desk.enter, args=arguments, daemon=True) for arguments in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(desk.contents) == sorted({content for content, _ in wanted})
    assert len(set(desk.places)) == len(desk.places)
    assert not desk.turns.held and not desk.turns.let_go, "nothing is kept of what has ended"


def test_those_that_can_get_nothing_in_common_do_not_wait_for_each_other() -> None:
    turns, met = Turns(), threading.Barrier(2)

    def enter(name: str) -> None:
        with turns.holding(frozenset({f"content {name}"})) as turn:
            turn.begin()
            assert turn.has(f"folder {name}")
            met.wait(WAIT)  # only passed by both at the same time

    threads = [threading.Thread(target=enter, args=(name,), daemon=True) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not met.broken and not any(thread.is_alive() for thread in threads)


def test_a_place_that_another_had_after_the_journal_was_read_is_asked_for_again() -> None:
    turns = Turns()
    with turns.holding(frozenset({"content a"})) as first:
        first.begin()
        with turns.holding(frozenset({"content b"})) as second:
            second.begin()
            assert second.has("folder x")
        assert not first.has("folder x"), "what the second one entered was not read"
        first.begin()
        assert first.has("folder x"), "it has been held since before that reading"
