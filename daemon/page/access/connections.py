"""Connections of the page's server: how many there may be, and how long one may take for a request.

What a client sends slowly, or never, and what it does not read, costs a file handle that the daemon's own work may need.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS, LEAST_CONNECTIONS = 128, 4
"""Of all clients together; for another one the longest idle goes."""
SHARE = 4
"""The part of the file handles of this process that its connections may take is the SHARE-th."""
BACKLOG = 128
"""Connections that the kernel keeps until they are accepted."""
ACCEPTED = 8
"""Of these are accepted at a time, before those that are too many go."""
REQUEST_SECONDS = 10.0
"""For head and body of a request, from the connection or the answer before it on."""
HEAD_BYTES = 16 << 10
_SENDS = (h11.IDLE, h11.SEND_BODY)


def most_connections() -> int:
    """How many there may be, by the file handles that this process may have."""
    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if handles == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(LEAST_CONNECTIONS, handles // SHARE))


class Connection(H11Protocol):
    """A connection that a slow or silent client can't keep."""

    _deadline: asyncio.TimerHandle | None = None
    _numbers = itertools.count()
    number = 0
    """Rises from connection to connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, in place of an idle one where there are too many."""
        if len(self.connections) >= most_connections() and not self._make_room():
            transport.abort()
            self.transport = transport
            return
        super().connection_made(transport)
        self.number = next(self._numbers)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._unwatch()
        if self in self.connections:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The client sent something."""
        if self not in self.connections:
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request was answered, and the next may come."""
        super().on_response_complete()
        self._watch()

    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> bool:
        idle = next((known for known in _oldest_first(self.connections) if known.is_idle()), None)
        if idle is not None:
            self.connections.discard(idle)
            idle.transport.abort()
        return idle is not None

    def _watch(self) -> None:
        """The deadline runs while the client has a request to send, and is not moved by each byte of it."""
        if self.transport.is_closing() or self.conn.their_state not in _SENDS:
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self.transport.abort()


def _oldest_first(connections: Any) -> list[Connection]:
    return sorted(connections, key=lambda known: known.number)
