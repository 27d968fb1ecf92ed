"""HTTP with a far end, for targets that send files: bodies in pieces, answers as streams, credentials for the far end's own address.

A secret goes to the origin that the configuration names and to no other, wherever an answer points to. Nothing is tried again here.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit, urlunsplit

import urllib3

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.far_end import error_of, unreachable
from handlers.deliver.target import AT_ONCE, SMALL_BYTES

CONNECT_SECONDS, SILENT_SECONDS = 15.0, 300.0
"""Until there is a connection; between two bytes of an answer, which may come after a long digest."""
MOST = 8 << 20
"""Bytes of an answer that is no file."""
SAID = 300
"""Characters of a far end's own words that are passed on."""
HOPS = 5
BLOCK = 1 << 20
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_ROOM = re.compile(r"no space left|disk (?:is )?full|quota|storage limit|exceed the configured upper limit", re.IGNORECASE)
"""How services say that they are full under statuses that mean something else."""

MOST_XML = 4096
"""Bytes of an answer in which object stores' `<Code>` and `<Message>` are looked for."""
_CONNECTION = re.compile(r"^HTTPS?Connection(?:Pool)?\(.*?\): ")
_XML_ERROR = re.compile(rb"<(?:Code|Message)>([^<]*)</")

Body = bytes | bytearray | Callable[[], Iterable[bytes] | Iterable[bytearray]]
"""What is sent; a function makes a stream anew for each try."""


class Credentials(Protocol):
    """What a far end wants to see with each request."""

    def headers(self) -> Mapping[str, str]:
        """Of the next request."""

    def renewed(self, challenge: str) -> bool:
        """Whether there is something else to show after a 401 with that header WWW-Authenticate."""


@dataclass(frozen=True)
class Said:
    """An answer that was read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    """What gave it."""

    def json(self) -> Any:
        """The body; None where it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def words(self) -> str:
        """What a body says about an error."""
        said = self.json()
        if isinstance(said, dict) and isinstance(said.get("errors"), list) and said["errors"] and isinstance(said["errors"][0], dict):
            first = said["errors"][0]
            return " ".join(str(first[name]) for name in ("code", "message", "detail") if first.get(name))[:SAID]
        if isinstance(said, dict) and said.get("error"):
            error = said["error"]
            return str(error.get("message") or error if isinstance(error, dict) else error)[:SAID]
        if parts := _XML_ERROR.findall(self.body[:MOST_XML]):
            return " ".join(part.decode("utf-8", "replace") for part in parts)[:SAID]
        return self.body[:SAID].decode("utf-8", "replace")


class Calls:
    """One far end."""

    def __init__(self, base: str, ca_file: str = "", secrets: Iterable[str] = (), silent: float = SILENT_SECONDS) -> None:
        self.base = base.rstrip("/")
        self.credentials: Credentials | None = None
        self._secrets = [secret for secret in secrets if secret]
        self._line = threading.Lock()
        """Held while a large body is sent: a cut costs no more than that, however many files are under way."""
        more: dict[str, Any] = {"ca_certs": ca_file} if ca_file else {}
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=silent)
        parts = urlsplit(self.base)
        proxy = None
        if not is_loopback(parts.hostname) and not urllib.request.proxy_bypass(parts.hostname or ""):
            proxy = urllib.request.getproxies().get(parts.scheme)
        self._pool = (
            urllib3.ProxyManager(proxy, maxsize=AT_ONCE, retries=False, timeout=timeout, **more)
            if proxy
            else urllib3.PoolManager(maxsize=AT_ONCE, retries=False, timeout=timeout, **more)
        )

    def close(self) -> None:
        """Close connections."""
        self._pool.clear()

    def ask(
        self, operation: str, method: str, url: str, *, body: Body | None = None, headers: Mapping[str, str] | None = None,
        accepted: Iterable[int] = (200,), most: int = MOST,
    ) -> Said:  # fmt: skip
        """An answer, read whole. `url` may be relative to the far end's address. Raises CkptdError for a status that is not `accepted`."""
        with self._answer(operation, method, url, body, headers or {}) as (answer, where):
            said = Said(answer.status, answer.headers, self._read(operation, answer, where, most), where)
        if said.status not in accepted:
            raise self.error(operation, said)
        return said

    def stream(self, operation: str, url: str, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """A file in blocks. Raises as `ask`."""
        with self._answer(operation, "GET", url, None, headers or {}) as (answer, where):
            if answer.status != 200:
                raise self.error(operation, Said(answer.status, answer.headers, self._read(operation, answer, where), where))
            try:
                yield from answer.stream(BLOCK, decode_content=False)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise unreachable(operation, _reason(error), plain(where)) from error

    def error(self, operation: str, said: Said) -> CkptdError:
        """The error that an answer stands for."""
        words = self.masked(said.words)
        if said.status >= 400 and _NO_ROOM.search(words):
            return Retryable(
                FaultCode.DELIVERY_FULL, operation, f"the far end answered {said.status}: {words}",
                "free space there, or let the target's `keep` remove older versions", path=plain(said.url),
            )  # fmt: skip
        return error_of(said.status, operation, words, plain(said.url), said.headers.get("Retry-After"))

    def masked(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def hide(self, secret: str) -> None:
        """Let no text show it."""
        self._secrets.append(secret)

    def resolved(self, url: str, near: str = "") -> str:
        """The absolute address that a far end means by `url`. Behind a proxy that ends TLS some name themselves by http: that is https."""
        absolute = urljoin(near or self.base + "/", url)
        mine, its = urlsplit(self.base), urlsplit(absolute)
        if mine.scheme == "https" and its.scheme == "http" and mine.hostname == its.hostname and its.port in (None, 80, mine.port):
            absolute = urlunsplit(("https", mine.netloc, its.path, its.query, ""))
        return absolute

    @contextlib.contextmanager
    def _answer(
        self, operation: str, method: str, url: str, body: Body | None, headers: Mapping[str, str]
    ) -> Iterator[tuple[Any, str]]:  # fmt: skip
        where, renewed = self.resolved(url), False
        for _ in range(HOPS):
            answer = self._send(operation, method, where, body, headers)
            try:
                if answer.status == 401 and not renewed and (renewed := self._renewed(where, answer)):
                    answer.drain_conn()
                    continue
                if answer.status in REDIRECTS and method in ("GET", "HEAD") and (location := answer.headers.get("Location")):
                    answer.drain_conn()
                    where = self._allowed(operation, self.resolved(location, where))
                    continue
                yield answer, where
                return
            finally:
                answer.release_conn()
        cause = "the far end points from address to address"
        raise Permanent(FaultCode.DELIVERY_REFUSED, operation, cause, "correct the target's address", path=plain(where))

    def _renewed(self, where: str, answer: Any) -> bool:
        """Whether there are other credentials to show to a far end that refused those it got."""
        challenge = answer.headers.get("WWW-Authenticate", "")
        return self._is_ours(where) and self.credentials is not None and self.credentials.renewed(challenge)

    def _send(self, operation: str, method: str, where: str, body: Body | None, headers: Mapping[str, str]) -> Any:
        self._allowed(operation, where)
        mine = self.credentials.headers() if self.credentials is not None and self._is_ours(where) else {}
        length = {} if body is None or callable(body) else {"Content-Length": str(len(body))}
        with contextlib.ExitStack() as line:
            data: Any = body if (length and len(body) <= SMALL_BYTES) or body is None else self._alone(body, line)  # type: ignore[arg-type]
            try:
                return self._pool.request(
                    method, where, body=data, headers={"Accept-Encoding": "identity", **length, **headers, **mine}, redirect=False,
                    preload_content=False, retries=False,
                )  # fmt: skip
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise unreachable(operation, Exception(self.masked(str(_reason(error)))), plain(where)) from None

    def _alone(self, body: Body, line: contextlib.ExitStack) -> Iterator[bytes | bytearray | memoryview]:
        """A large body in pieces, while no other is on its way; its answer may come while another is."""
        line.enter_context(self._line)
        if callable(body):
            yield from body()
        else:
            for start in range(0, len(body), BLOCK):
                yield memoryview(body)[start : start + BLOCK]
        line.close()

    def _read(self, operation: str, answer: Any, where: str, most: int = MOST) -> bytes:
        body = bytearray()
        try:  # to an empty block: by that alone urllib3 says that an answer was cut
            while len(body) < most and (block := answer.read(min(BLOCK, most - len(body)), decode_content=False)):
                body += block
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(operation, _reason(error), plain(where)) from error
        return bytes(body)

    def _is_ours(self, url: str) -> bool:
        """Whether an address is the far end's own origin."""
        mine, its = urlsplit(self.base), urlsplit(url)
        return (mine.scheme, mine.hostname, mine.port) == (its.scheme, its.hostname, its.port)

    def _allowed(self, operation: str, url: str) -> str:
        """The address. Raises Permanent for one that would carry contents in clear over a network."""
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == "http" and (is_loopback(parts.hostname) or self._is_ours(url))):
            return url
        cause = "the far end points to an address without https"
        raise Permanent(FaultCode.DELIVERY_REFUSED, operation, cause, "correct the service's own address in its settings", path=plain(url))


def is_loopback(host: str | None) -> bool:
    """Whether a name is this machine's own."""
    return host in ("localhost", "127.0.0.1", "::1")


def plain(url: str) -> str:
    """An address as it may be shown: what stands behind `?` may be a signature."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _reason(error: BaseException) -> Exception:
    """The cause that a person can read, without what the library calls its connection."""
    reason = getattr(error, "reason", None)
    return Exception(_CONNECTION.sub("", str(reason if isinstance(reason, Exception) else error)))
