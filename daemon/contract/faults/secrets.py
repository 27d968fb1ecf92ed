"""Secrets: a type for URLs that hold them, what looks like one, and the last net before a text is shown or kept.

Messages are made without secrets where they are made (`daemon.config`); `censored` is called where they leave, by faults, log, live file
and terminal, for what a library or a mistake brings into them all the same.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

STARS = "***"
"""What stands in the place of a secret."""
SECTIONS = frozenset({"notify", "deliver"})
"""Sections of the configuration of which no value and no unknown key is shown."""
PLAIN = frozenset({"on", "urls_file", "digest_at", "stuck_hours"})
"""Keys of these sections that hold no secret, unless something is wrong with them."""
PLAIN_OF_TARGETS = frozenset({
    "name", "url_file", "secret_file", "command", "limit_seconds", "minutes", "on", "runs", "quiet", "urgent", "tensorboard", "experiment",
    "model", "alias", "variant", "wandb", "offline", "folder", "key_file", "python",
})  # fmt: skip
"""The same of the tables in `notify.targets`."""
PLAIN_OF_DELIVERIES = frozenset({
    "name", "kind", "runs", "policy", "steps", "variants", "bandwidth", "keep", "secret_file", "read_back", "share",
})  # fmt: skip
"""The same of the tables in `deliver`, whose other keys their kinds have: those may hold addresses."""
SHORTEST = 6
"""Characters that a secret has at the least to be looked for in texts: a shorter one would be found in words."""
LEAST_PIECE = 8
"""Characters of a part of a secret that is looked for by itself."""
MOST = 1000
"""Secrets that a process looks for."""

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{1,30}"
_WITH_USER = re.compile(rf"({_SCHEME}):/{{1,3}}[^\s/\"'<>\\?#]+@[^\s\"'<>\\]*")
"""A URL with a user or a password, in a text. A path of Python has one slash of its two."""
_NET = _WITH_USER
"""What `censored` looks for."""
_ANY_URL = re.compile(rf"(?:\A|[\s\"'\[{{(,=]){_SCHEME}://")
_PAIR = re.compile(r"[^\s:@]+:[^\s@]+@\S+")
"""USER:PASSWORD@HOST without a scheme."""
_KNOWN_TOKEN = re.compile(
    r"(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|sk-|AKIA|ASIA|AIza|eyJ)[A-Za-z0-9_\-.]{12,}"
)  # fmt: skip
"""Tokens by how their issuers begin them."""
_RUN = re.compile(r"[A-Za-z0-9+=]{16,}")
"""What may be a token: letters and digits without a break."""
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")

_OF_SECRETS = re.compile("secret|token|passw|key|credential", re.IGNORECASE)
"""In the name of what holds a secret."""
_COMMON = re.compile(r"[a-z_.-]*|[\d.]*")
"""Words, names of hosts, numbers."""
_USER = re.compile(r"[^\s:/\"'{}=]{1,100}")
"""Before the password, in USER:PASSWORD."""
_LONGEST_WORD = 200
"""Characters of what is sent in a header, in base64."""

_known: dict[str, None] = {}
_lock = threading.Lock()


def scheme_of(url: str) -> str:
    """A URL's scheme; "" where it has none that looks like one, and so might be a secret."""
    scheme, separator, _ = url.partition("://")
    kind = scheme.strip().lower()
    return kind if separator and re.fullmatch(r"[a-z][a-z0-9]{1,13}", kind) else ""


def is_credential(text: str) -> bool:
    """Whether a text is surely no path, name or size, but an address of a service or a token."""
    return bool(_ANY_URL.search(text)) or holds_secret(text)


def holds_secret(text: str) -> bool:
    """Whether a text surely holds a user, a password or a token, also where it is the address of a service."""
    return bool(_WITH_USER.search(text) or _KNOWN_TOKEN.search(text))


def may_be_secret(value: Any) -> bool:
    """Whether a value, or a key or a value inside of it, looks like a URL, a password or a token, so that a message should not show it."""
    if hasattr(value, "get_secret_value"):  # a type of pydantic, which is not imported for a look
        return True
    if isinstance(value, Mapping):
        return any(may_be_secret(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(may_be_secret, value))
    if isinstance(value, bytes):
        return may_be_secret(value.decode("latin-1"))
    if not isinstance(value, str):
        return False
    return is_credential(value) or "://" in value or bool(_PAIR.search(value)) or any(map(_is_mixed, _RUN.findall(value)))


def _is_mixed(run: str) -> bool:
    """Whether a run of characters is no word: letters and digits, in both cases or over the length of words."""
    digits, letters = any(map(str.isdigit, run)), any(map(str.isalpha, run))
    return digits and letters and (len(run) >= 24 or (run != run.lower() and run != run.upper()))


def shown(value: Any) -> str:
    """A value of a configuration as a message shows it."""
    return STARS if may_be_secret(value) else repr(value)


def name_shown(name: str) -> str:
    """A key, or the name of a variable, that is not known, as a message shows it."""
    return STARS if may_be_secret(name) or len(name) > 100 else name


def is_plain_word(name: str) -> bool:
    """Whether a name is of the kind that keys have, and no token."""
    return bool(_WORD.fullmatch(name)) and not may_be_secret(name)


def keep(value: Any) -> None:
    """Have `censored` look for this secret, and for the texts inside of it, in all that the process says from now on."""
    if hasattr(value, "get_secret_value"):  # a type of pydantic, which is not imported for a look
        keep(value.get_secret_value())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            keep(key)
            keep(part)
    elif isinstance(value, list | tuple):
        for part in value:
            keep(part)
    elif isinstance(value, str):
        _keep_text(value)


def keep_whole(secrets: Iterable[str]) -> None:
    """The same of texts that are secrets whatever they look like, of their lines, of what a line names or has behind its user, and of the
    words inside of them that are none of a language."""
    forms = {form for secret in secrets for piece in _pieces_of(secret) for form in _written(piece)}
    with _lock:
        for form in sorted(forms, key=len, reverse=True):  # where there are too many, words go unseen before what holds them
            if len(form) >= SHORTEST and len(_known) < MOST:
                _known[form] = None


def _pieces_of(secret: str) -> set[str]:
    """A secret, and what of it is one by itself."""
    words = {piece for piece in re.split(r"[\s\"',:={}\\]+", secret) if len(piece) >= LEAST_PIECE and not _is_common(piece)}
    lines = [line.strip() for line in secret.splitlines()]
    pieces = {secret, secret.strip(), *words, *(line for line in lines if not _COMMON.fullmatch(line))}
    for line in lines:
        name, mark, value = line.removeprefix("export ").partition("=")
        if mark and (_OF_SECRETS.search(name) or not _COMMON.fullmatch(value)):
            pieces |= {value.strip(), value.strip().strip("\"'")}
    user, mark, password = secret.strip().partition(":")
    if mark and _USER.fullmatch(user):
        pieces |= {password, *password.splitlines()}
    return pieces


def _written(piece: str) -> set[str]:
    """How libraries write a text into messages and requests."""
    data = piece.encode("utf-8", "surrogateescape")
    texts = (json.dumps(piece)[1:-1], json.dumps(piece, ensure_ascii=False)[1:-1], repr(piece)[1:-1], repr(data)[2:-1])
    addresses = (urllib.parse.quote(data), urllib.parse.quote(data, safe=""), urllib.parse.quote_plus(data))
    short = len(piece) <= _LONGEST_WORD and "\n" not in piece
    return {piece, *texts, *addresses, *((base64.b64encode(data).decode(),) if short else ())}


def _keep_text(text: str) -> None:
    whole = text.strip()
    if whole.startswith(("sqlite:", "file:")) or ("://" not in whole and (whole.startswith(("/", "~", ".")) or _is_common(whole))):
        return  # a path or a word, which would be hidden wherever it stands
    parts = {whole, *_parts_of(whole)}
    forms = {form for part in parts for form in (part, urllib.parse.unquote(part), urllib.parse.quote(part))}
    forms |= {form for part in forms for form in (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], repr(part)[1:-1])}
    with _lock:
        for form in forms:
            if len(form) >= SHORTEST and len(_known) < MOST:
                _known[form] = None


def _parts_of(url: str) -> set[str]:
    """What of a URL is secret by itself: all behind the scheme, user and password, and what looks like a token in path and query."""
    rest = url.partition("://")[2].strip()
    if not rest:
        return set()
    user, at_sign, place = rest.rpartition("@")
    pieces = {
        piece for piece in re.split(r"[/?&=#,;+@:\s]+", place if at_sign else rest) if len(piece) >= LEAST_PIECE and not _is_common(piece)
    }
    return {*(piece for piece in (rest, user, *user.split(":")) if not _is_common(piece)), *pieces}


def _is_common(piece: str) -> bool:
    """Whether a part of a URL may as well be a word, a name of a host or a number: hiding it would hide it everywhere."""
    return bool(_COMMON.fullmatch(piece)) or piece.count(".") > 0


def censored(text: str) -> str:
    """The text without the secrets that this process knows, and without URLs that hold a user or a password."""
    if _known:
        for secret in sorted(_known, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, STARS)
    return _NET.sub(rf"\1://{STARS}", text) if "@" in text else text


def censored_values(value: Any) -> Any:
    """The same of every text inside of lists and objects; another value that would show a secret is not shown."""
    if isinstance(value, str):
        return censored(value)
    if isinstance(value, dict):
        return {censored_values(key): censored_values(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(censored_values, value))
    return value if value is None or isinstance(value, int | float) or censored(said := repr(value)) == said else STARS
