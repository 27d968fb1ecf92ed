"""Other daemons' pages: what each of `page.peers` answered last, asked in the background, so that no page waits for another machine.

What comes from there is data: it is bounded, is passed on as JSON, and says nothing about this daemon. No redirect is followed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import h11

from daemon.contract.disk.files import check_values
from daemon.contract.light import dataclass
from daemon.contract.values import Json
from daemon.page.context import Context, Threads

ROUND_SECONDS = 10.0
ANSWER_SECONDS = 5.0
"""For name, connection and the whole answer."""
MOST_BYTES, MOST_VALUES = 1 << 20, 40_000
"""Of an answer."""
JOBS = 20
PATH = f"/api/v1/status?jobs={JOBS}"


@dataclass(frozen=True)
class Peer:
    """Another daemon."""

    address: str
    """As `page.peers` has it."""
    status: Json | None
    """What it answered last, as `ckptd status --json`; None if it never did."""
    at: str | None
    """When that was."""
    age_seconds: float | None
    """How long ago."""
    problem: str | None
    """Why it did not answer when it was asked last; None if it did."""


@dataclass(frozen=True)
class PeersAnswer:
    """The daemons of `page.peers`."""

    peers: tuple[Peer, ...]
    """In the order of the configuration."""


NOT_ASKED = "it has not been asked yet"


@dataclass(frozen=True)
class LastAnswer:
    """What is known of one of them. It outlives a server: a reload of the page's configuration begins another."""

    status: Json | None = None
    at: str | None = None
    moment: float = 0.0
    problem: str | None = NOT_ASKED


class _BadAnswer(Exception):
    """What a peer said is no answer."""


class Peers:
    """Asks them in turn; `view` gives what is known."""

    def __init__(self, context: Context, answers: dict[str, LastAnswer]) -> None:
        """`answers`: what is known of earlier, by address; it is kept up to date."""
        self._context = context
        self._known = answers
        known = {address: answers.get(address, LastAnswer()) for address in context.page.peers}
        answers.clear()
        answers.update(known)
        self._asking = {address: Threads(1) for address in known}  # where its name is looked up, which may take any time
        self._secure: Any = None

    def view(self) -> PeersAnswer:
        """All of them, as they answered last."""
        now = time.monotonic()
        return PeersAnswer(tuple(
            Peer(address, known.status, known.at, None if known.at is None else round(now - known.moment, 1), known.problem)
            for address, known in self._known.items()
        ))  # fmt: skip

    @property
    def away(self) -> int:
        """How many did not answer when they were asked last."""
        return sum(known.problem not in (None, NOT_ASKED) for known in self._known.values())

    async def run(self) -> None:
        """Ask all of them, again and again, until this is cancelled."""
        while self._known:
            await asyncio.gather(*(self._ask(address) for address in self._known))
            await asyncio.sleep(ROUND_SECONDS)

    async def _ask(self, address: str) -> None:
        before, problem = self._known[address], None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await self._fetch(address)
        except TimeoutError:
            problem = f"it gave no answer within {ANSWER_SECONDS:.0f} s"
        except _BadAnswer as error:
            problem = str(error)
        except Exception as error:  # whatever it is, the other daemons are asked again
            problem = f"it can't be reached: {_why(error)}"
        if problem is None:
            self._known[address] = LastAnswer(status, datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic(), None)
        else:
            self._known[address] = LastAnswer(before.status, before.at, before.moment, problem)

    async def _fetch(self, address: str) -> Json:
        parts = urlsplit(address)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        addresses = await self._asking[address].call(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        reader, writer = await asyncio.open_connection(
            str(addresses[0][4][0]), port, ssl=self._certificates() if secure else None, server_hostname=host if secure else None
        )
        try:
            token = self._context.page.token_of_peer(address)
            headers = [("Host", parts.netloc.encode("idna").decode()), ("Accept", "application/json"), ("Connection", "close")]
            headers += [("Authorization", f"Bearer {token.get_secret_value()}")] if token else []
            connection = h11.Connection(h11.CLIENT)
            request = h11.Request(method="GET", target=f"{parts.path}{PATH}", headers=headers)
            writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
            await writer.drain()
            return _object_in(await _body(connection, reader))
        finally:
            writer.close()

    def _certificates(self) -> Any:
        if self._secure is None:
            import ssl

            self._secure = ssl.create_default_context()
        return self._secure


def _why(error: Exception) -> str:
    """The cause in the words of the system, where asyncio has put its own in their place."""
    if isinstance(error, OSError) and error.errno and (error.strerror or "").startswith("Connect call failed"):
        return os.strerror(error.errno)
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


async def _body(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Response) and event.status_code != 200:
            said = {
                401: "it wants a token; name it in the file of page.peer_tokens",
                403: "it wants a token",
                421: "it does not know this name",
            }
            raise _BadAnswer(said.get(event.status_code, f"it answers with the code {event.status_code}"))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MOST_BYTES:
                raise _BadAnswer(f"its answer has more than {MOST_BYTES >> 20} MiB")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise _BadAnswer("its answer has no end")


def _object_in(body: bytes) -> Json:
    try:
        check_values(body, MOST_VALUES)
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("daemon"), dict):
        raise _BadAnswer("its answer is none of a ckptd")
    return value
