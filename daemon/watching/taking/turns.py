"""Which threads enter checkpoints side by side: those that can get neither one content nor one place.

What a thread decides counts until its job is committed, and the journal does not know it before. So it holds keys from before it reads the
journal until after the commit: first those that it knows, then that of the place, which follows from what it read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from daemon.system.processes.seats import SEATS


class Turns:
    """The keys that are held. Used by every thread that enters checkpoints."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held: set[str] = set()
        self.let_go: dict[str, int] = {}
        """Key → the number of the moment at which it was let go last, while anybody may have read the journal before that."""
        self.moment = 0

    @contextmanager
    def holding(self, keys: frozenset[str]) -> Iterator[Turn]:
        """Wait until nobody has one of these keys, and hold them until the end of the context."""
        turn = Turn(self)
        turn.hold(keys)
        try:
            yield turn
        finally:
            turn.release(turn.mine)


class Turn:
    """The keys of one thread. It waits for the key of a place while it holds others, and never the other way round."""

    def __init__(self, turns: Turns) -> None:
        self.mine: set[str] = set()
        self._turns, self._place, self._began = turns, "", 0

    def hold(self, keys: frozenset[str]) -> None:
        """Wait until nobody has one of these, and hold them."""
        if not self._get(keys):
            with SEATS.left(), self._turns.changed:
                self._turns.changed.wait_for(lambda: self._get(keys))

    def _get(self, keys: frozenset[str]) -> bool:
        with self._turns.changed:
            free = self._turns.held.isdisjoint(keys)
            if free:
                self._turns.held |= keys
                self.mine |= keys
            return free

    def release(self, keys: set[str]) -> None:
        """Let these go."""
        turns = self._turns
        with turns.changed:
            turns.moment += 1
            turns.let_go.update(dict.fromkeys(keys, turns.moment))
            turns.held -= keys
            self.mine = self.mine - keys
            if not turns.held:  # so nobody has begun to read either
                turns.let_go.clear()
            turns.changed.notify_all()

    def begin(self) -> None:
        """The journal is read from now on."""
        with self._turns.changed:
            self._began = self._turns.moment

    def has(self, place: str) -> bool:
        """Hold the key of a place; False where another thread has had it since the journal was read, which is to be read again then."""
        if place in self.mine:
            return True
        with self._turns.changed:
            free = place not in self._turns.held and self._turns.let_go.get(place, 0) <= self._began
            if free:
                self._turns.held.add(place)
                self.mine.add(place)
        if not free:
            self.release({self._place} & self.mine)
            self.hold(frozenset({place}))
        self._place = place
        return free
