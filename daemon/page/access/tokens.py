"""Who may ask: the token by `Authorization: Bearer`, or the cookie that the form gives for it, and how often one may be wrong.

A cookie holds no token: it holds the time until which it counts, signed with the token, so that it ends when that is changed and nothing is
kept here. Comparisons take the same time for every wrong token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from daemon.config.page import PageSettings, proxy_network

COOKIE = "ckptd-page"
SESSION_SECONDS = 14 * 86400
MOST_WRONG, WRONG_SECONDS = 10, 60.0
"""Wrong tokens of one client within so many seconds; after them not even a right one is looked at."""
MOST_WRONG_FORWARDED = 100
"""Of all clients that a proxy names, whose names a user of this machine may make up."""
MOST_WRONG_OF_ALL = 200
"""Of all clients together."""
MOST_CLIENTS = 1000


class Client(NamedTuple):
    """Who asks."""

    address: str
    forwarded: bool
    """Whether a proxy says so."""


class Tries:
    """Wrong tokens of late."""

    def __init__(self) -> None:
        self._by_client: dict[str, deque[float]] = {}
        self._forwarded: deque[float] = deque(maxlen=MOST_WRONG_FORWARDED)
        self._all: deque[float] = deque(maxlen=MOST_WRONG_OF_ALL)

    def wait(self, client: Client) -> float:
        """Seconds until a token of this client is looked at again; 0 for now."""
        moment = time.monotonic()
        lists = [(self._by_client.get(client.address, deque()), MOST_WRONG), (self._all, MOST_WRONG_OF_ALL)]
        lists += [(self._forwarded, MOST_WRONG_FORWARDED)] if client.forwarded else []
        return max(_wait(times, most, moment) for times, most in lists)

    def wrong(self, client: Client) -> bool:
        """Count a wrong token; whether it is the first of this client within the time, which is worth a line in the log."""
        moment = time.monotonic()
        times = self._by_client.setdefault(client.address, deque(maxlen=MOST_WRONG))
        first = not times or moment - times[-1] > WRONG_SECONDS
        times.append(moment)
        self._all.append(moment)
        if client.forwarded:
            self._forwarded.append(moment)
        if len(self._by_client) > MOST_CLIENTS:
            self._by_client = {name: kept for name, kept in self._by_client.items() if moment - kept[-1] < WRONG_SECONDS}
            while len(self._by_client) > MOST_CLIENTS:
                del self._by_client[next(iter(self._by_client))]
        return first


def _wait(times: deque[float], most: int, moment: float) -> float:
    return max(0.0, times[-most] + WRONG_SECONDS - moment) if len(times) >= most else 0.0


def is_right(given: str, token: str) -> bool:
    """Whether a token is the right one."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(token.encode()).digest())


def bearer(headers: Headers) -> str | None:
    """The token of the header Authorization; None without one."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" and given.strip() else None


def session(token: str, now: float | None = None) -> str:
    """The value of a new cookie."""
    until = str(int((time.time() if now is None else now) + SESSION_SECONDS))
    return f"{until}.{_signed(until, token)}"


def is_session(value: str, token: str) -> bool:
    """Whether a cookie was given for this token, and still counts."""
    until, _, signed = value.partition(".")
    right = hmac.compare_digest(signed.encode(), _signed(until, token).encode())
    return right and until.isascii() and until.isdigit() and len(until) < 16 and time.time() < int(until)


def _signed(until: str, token: str) -> str:
    return hmac.new(token.encode(), f"ckptd page until {until}".encode(), hashlib.sha256).hexdigest()


def cookie_of(cookies: Mapping[str, str]) -> str:
    """The session's cookie, "" without one."""
    return cookies.get(COOKIE, "")


def client_of(scope: Scope, headers: Headers, page: PageSettings) -> Client:
    """The address that asks: behind a proxy on this machine, or one of `page.proxies`, what that says: the last address of X-Forwarded-For.
    Where `page.hosts`, `page.url` and `page.proxies` name none there is no proxy, and who sends that header wants to be taken for another.
    """
    client = scope.get("client")
    address = client[0] if client else "socket"
    last = headers.getlist("x-forwarded-for")[-1:]
    named = _address(last[0].rpartition(",")[2].strip()) if last else None
    believed = named is not None and _is_proxy(address, page)
    return Client(str(named) if believed else address, believed)


def _is_proxy(address: str, page: PageSettings) -> bool:
    known = _address(address)
    if address == "socket" or (known is not None and known.is_loopback):
        return bool(page.hosts or page.url or page.proxies)
    return known is not None and any(known in proxy_network(proxy) for proxy in page.proxies)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, that of IPv4 also where it is written as one of IPv6; None for what is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
