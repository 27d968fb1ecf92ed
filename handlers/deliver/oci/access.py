"""What a registry is shown: user and password, by themselves (RFC 7617) or for tokens that its own service gives (RFC 6750, and
https://distribution.github.io/distribution/spec/auth/token/). Tokens are short-lived: a new one is asked for where one is refused."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Calls, is_loopback, plain

ASK = "ask for the registry's token"
MOST = 1 << 20
"""Bytes of a file with passwords."""
_FIELD = re.compile(r'([A-Za-z_]+)=(?:"([^"]*)"|([^\s,]+))')


class Account:
    """The credentials of one registry; `handlers.deliver.calls.Credentials`."""

    def __init__(self, calls: Calls, host: str, path: str, secret: str) -> None:
        self._calls, self._path = calls, path
        self._user, self._password = account_of(secret, host)
        self._shown: dict[str, str] = {}
        for part in (self._password, self._basic.removeprefix("Basic ")):
            if part:
                calls.hide(part)

    @property
    def _basic(self) -> str:
        if not self._password:
            return ""
        return "Basic " + base64.b64encode(f"{self._user}:{self._password}".encode()).decode()

    def headers(self) -> Mapping[str, str]:
        """What was shown last: nothing before the registry asked."""
        return self._shown

    def renewed(self, challenge: str) -> bool:
        """Whether there is something else to show."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "bearer":
            fields = {name.lower(): quoted or bare for name, quoted, bare in _FIELD.findall(rest)}
            self._shown = {"Authorization": f"Bearer {self._token(fields)}"}
            return True
        if not self._basic or self._shown.get("Authorization") == self._basic:
            return False
        self._shown = {"Authorization": self._basic}
        return True

    def _token(self, fields: Mapping[str, str]) -> str:
        """Ask the service that the registry names. Raises CkptdError."""
        realm = fields.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
            cause = "the registry wants the password to be shown to an address without https"
            raise Permanent(FaultCode.DELIVERY_REFUSED, ASK, cause, "correct the registry's settings", path=plain(realm))
        scope = fields.get("scope", "")
        if scope.startswith(f"repository:{self._path}:"):  # one token for all that is done with the repository
            wanted = {"pull", "push", *scope.rsplit(":", 1)[1].split(",")}
            scope = f"repository:{self._path}:{','.join(sorted(wanted))}"
        query = urlencode({name: value for name, value in (("service", fields.get("service", "")), ("scope", scope)) if value})
        url = f"{realm}{'&' if parts.query else '?'}{query}"
        said = Calls(realm, secrets=(self._password,))
        try:
            answer = said.ask(ASK, "GET", url, headers={"Authorization": self._basic} if self._basic else {})
        finally:
            said.close()
        document = answer.json()
        token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
        if not isinstance(token, str) or not token or not token.isprintable():
            cause = "the answer has no token"
            raise Permanent(FaultCode.DELIVERY_REFUSED, ASK, cause, "look at the service that the registry names", path=plain(realm))
        self._calls.hide(token)
        return token


def account_of(secret: str, host: str) -> tuple[str, str]:
    """User and password: of a text USER:PASSWORD, of a token alone, or of the JSON file that `docker login` and `podman login` write.

    ("", "") where there is nothing for this registry. Without a text it is the file that the variable REGISTRY_AUTH_FILE names.
    """
    text = secret.strip()
    if not text and (name := os.environ.get("REGISTRY_AUTH_FILE")):
        try:
            with Path(name).open("rb") as file:
                text = file.read(MOST).decode("utf-8", "replace").strip()
        except OSError as error:
            cause = f"it can't be read: {error.strerror}"
            raise Permanent(FaultCode.DELIVERY_REFUSED, "read REGISTRY_AUTH_FILE", cause, "correct that variable", path=name) from error
    if not text.startswith("{"):
        user, colon, password = text.partition(":")
        return (user, password) if colon else ("token" if text else "", text)
    try:
        entries = json.loads(text)["auths"]
        entry: dict[str, str] = next(
            (value for key, value in entries.items() if key.removeprefix("https://").partition("/")[0] == host), {}
        )
        user, _, password = base64.b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
        return user, password
    except (ValueError, KeyError, AttributeError, TypeError, binascii.Error, RecursionError):
        cause = "the secret is neither USER:PASSWORD nor the file that `docker login` writes"
        raise Permanent(FaultCode.DELIVERY_REFUSED, "read the registry's password", cause, "correct the target's secret file") from None
