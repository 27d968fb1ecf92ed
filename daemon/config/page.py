"""`[page]`: where the page and the API listen, who may ask them, and which other daemons are shown there.

The token keeps out of the configuration, as the URLs of notifications do: it is in a file, or comes from the service manager.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, Secret, field_validator

from daemon.config.receivers import is_closed
from daemon.config.section import OptionalPath, Section
from daemon.contract.disk.files import read_bounded
from daemon.contract.light import dataclass

CREDENTIAL = "page-token"
"""Name of the credential by which a service manager gives the token: `LoadCredential=page-token:PATH` (systemd.exec(5))."""
LEAST_TOKEN, MOST_TOKEN = 16, 512
"""Characters of a token."""
MOST_BYTES = 1 << 16
"""Of a file with tokens."""
MOST_PEERS = 32
UNIX = "unix:"
_TOKEN = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class Address:
    """Where a server listens: a host and a port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it: a socket, whose permissions say who, or an address of the loopback."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def address_of(listen: str) -> Address:
    """What `page.listen` says. Raises ValueError for what is neither HOST:PORT nor unix:/PATH."""
    if listen.startswith(UNIX):
        path = listen.removeprefix(UNIX)
        if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > 100:
            raise ValueError("is no socket; write an absolute path of at most 100 bytes, for example 'unix:/run/ckptd/page.sock'")
        return Address(path=path)
    host, colon, port = listen.rpartition(":")
    if not colon or not _NAME.fullmatch(host):
        raise ValueError("is no address to listen on; write HOST:PORT, for example '127.0.0.1:8470', or '' for no page")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("has no port from 0 to 65535 at its end; for example '127.0.0.1:8470'")
    return Address(host.strip("[]"), int(port))


class PageSettings(Section):
    """`[page]`: the page and the API."""

    listen: str = ""
    url: str = ""
    token_file: OptionalPath = None
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    peers: tuple[str, ...] = Field(default=(), max_length=MOST_PEERS)
    peer_tokens: OptionalPath = None
    control: bool = False
    _token: Secret[str] | None = PrivateAttr(default=None)
    _tokens_of_peers: dict[str, Secret[str]] = PrivateAttr(default_factory=dict)

    @field_validator("listen")
    @classmethod
    def _listens_somewhere(cls, value: str) -> str:
        if value:
            address_of(value)
        return value

    @field_validator("url")
    @classmethod
    def _url_is_an_address(cls, value: str) -> str:
        if value and _no_peer(value) is not None:
            raise ValueError("is no address of a page; write for example 'https://ckptd.example.org', without user and password")
        return value.rstrip("/")

    @field_validator("hosts")
    @classmethod
    def _hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [name for name in value if not _NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a host; write it without scheme and port, for example 'ckptd.example.org'")
        return value

    @field_validator("proxies")
    @classmethod
    def _proxies_are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in value:
            try:
                proxy_network(proxy)
            except ValueError:
                raise ValueError(
                    f"{proxy!r} is no address and no network; write for example '10.0.0.5' or '10.0.0.0/24', whose host part is 0"
                ) from None
        return value

    @field_validator("peers")
    @classmethod
    def _peers_are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for peer in value:
            if (why := _no_peer(peer)) is not None:
                raise ValueError(f"{why}; write for example 'https://box2.example.org' or 'http://10.0.0.2:8470'")
        return tuple(peer.rstrip("/") for peer in value)

    @property
    def address(self) -> Address | None:
        """Where it listens; None while it is off."""
        return address_of(self.listen) if self.listen else None

    @property
    def token(self) -> Secret[str] | None:
        """What who asks must know; None where nobody needs one."""
        return self._token

    @property
    def tokens(self) -> tuple[Secret[str], ...]:
        """Its own token and those of its peers."""
        return (*([self._token] if self._token else []), *self._tokens_of_peers.values())

    def token_of_peer(self, peer: str) -> Secret[str] | None:
        """What a peer wants to hear; None where no token of it is known."""
        return self._tokens_of_peers.get(peer)

    def has_tokens_of(self, other: PageSettings) -> bool:
        """Whether both have the same tokens."""
        return (self._token, self._tokens_of_peers) == (other._token, other._tokens_of_peers)

    def with_tokens(self, *, needed: bool = True) -> Self:
        """The same with the tokens of its files. Raises ValueError, which begins with the key and holds no token, where one can't be used.

        `needed`: False for who serves nothing: a file that this user may not read is then left out.
        """
        complete = self.model_copy()
        if self.address is None:
            return complete
        file = token_file_of(self.token_file)
        if file is not None and (needed or not is_closed(file)):
            complete._token = Secret(_token_in(file))
        elif file is None and not self.address.is_local:
            raise ValueError(
                "page.listen: other machines reach this address, so a token is needed; set page.token_file, or listen on 127.0.0.1"
            )
        elif file is None and self.control and not self.address.path:
            raise ValueError(
                "page.control: every user of this machine could press the buttons, so a token is needed; set page.token_file, or listen on"
                " a socket (unix:/PATH)"
            )
        if self.peer_tokens is not None and (needed or not is_closed(self.peer_tokens)):
            complete._tokens_of_peers = _tokens_in(self.peer_tokens, self.peers)
        return complete


def token_file_of(configured: Path | None) -> Path | None:
    """Where the token is read from: the configured file, or what the service manager gives this process where there is none, or where this
    process may not read it; None: from nowhere."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    given = Path(folder, CREDENTIAL) if folder else None
    if given is not None and os.path.isfile(given) and (configured is None or is_closed(configured)):
        return given
    return configured


def _no_peer(peer: str) -> str | None:
    """Why an address is none of another daemon's page."""
    try:
        parts = urlsplit(peer)
        has_port = parts.port is None or parts.port > 0
        (parts.hostname or "").encode("idna")  # UnicodeError is a ValueError
    except ValueError:
        return "one of them is no address"
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port or parts.query or parts.fragment:
        return "one of them is no address of a page"
    if re.search(r"[\s\x00-\x1f\x7f]", peer) or not parts.path.isascii():
        return "one of them is no address of a page"
    return "one of them holds a user or a password; tokens belong into the file of page.peer_tokens" if "@" in parts.netloc else None


def _text_in(file: Path, key: str) -> str:
    try:
        return read_bounded(file, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{key}: the file is not UTF-8 text") from None
    except FileNotFoundError:
        raise ValueError(f"{key}: there is no such file; make it, for example with `openssl rand -hex 24`, mode 0600") from None
    except OSError as error:
        why = error.strerror or "it is no plain file"
        raise ValueError(f"{key}: the file can't be read ({why}); let the daemon's user read it") from None
    except ValueError:
        raise ValueError(f"{key}: the file is no plain file of at most {MOST_BYTES >> 10} KiB") from None


def _token_in(file: Path) -> str:
    key = "page.token_file"
    lines = [line.strip() for line in _text_in(file, key).splitlines() if line.strip()]
    if len(lines) != 1:
        raise ValueError(f"{key}: the file has {len(lines)} lines with text; write the token alone, on one line")
    _refuse_bad(lines[0], key)
    return lines[0]


def _tokens_in(file: Path, peers: tuple[str, ...]) -> dict[str, Secret[str]]:
    key, tokens = "page.peer_tokens", dict[str, Secret[str]]()
    for number, line in enumerate(_text_in(file, key).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or (peer := words[0].rstrip("/")) not in peers:
            raise ValueError(f"{key}: line {number} is not one of page.peers and its token; write both, with a space between")
        _refuse_bad(words[1], f"{key}: line {number}")
        tokens[peer] = Secret(words[1])
    return tokens


def _refuse_bad(token: str, key: str) -> None:
    """Raise ValueError for a token that can be guessed, or that no header can hold."""
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{key}: the token holds a space or a letter outside of ASCII; make one with `openssl rand -hex 24`")
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN:
        raise ValueError(f"{key}: the token has {len(token)} characters; make one of {LEAST_TOKEN} to {MOST_TOKEN}: `openssl rand -hex 24`")


def proxy_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """What `page.proxies` names: an address or a network, that of IPv4 also where it is written as one of IPv6. Raises ValueError."""
    network = ipaddress.ip_network(text)
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    return ipaddress.ip_network((mapped, network.prefixlen - 96)) if mapped is not None and network.prefixlen >= 96 else network
