"""Signatures of requests to S3, version 4: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""

from __future__ import annotations

import email.utils
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

from handlers.deliver.store.access import Keys

ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass
class Signer:
    """Signs with the keys that there are at the moment."""

    keys: Callable[[], Keys]
    region: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    skew: timedelta = timedelta()
    """By how much the service's clock is ahead of ours."""

    def signed(self, method: str, url: str, headers: Mapping[str, str], payload: str) -> dict[str, str]:
        """The headers with a signature. `url` has its path and query as `path` and `query` write them; `payload`: SHA-256 of the body."""
        keys, parts, moment = self.keys(), urlsplit(url), (self.now() + self.skew).strftime("%Y%m%dT%H%M%SZ")
        given = {**headers, "x-amz-date": moment, "x-amz-content-sha256": payload}
        if keys.token:
            given["x-amz-security-token"] = keys.token
        covered = {"host": _host(url)} | {
            name.lower(): " ".join(value.split()) for name, value in given.items() if name.lower().startswith(("x-amz-", "content-type"))
        }
        names = ";".join(sorted(covered))
        lines = "".join(f"{name}:{covered[name]}\n" for name in sorted(covered))
        request = "\n".join((method, parts.path or "/", parts.query, lines, names, payload))
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join((ALGORITHM, moment, scope, hashlib.sha256(request.encode()).hexdigest()))
        key = f"AWS4{keys.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**given, "Authorization": f"{ALGORITHM} {credential}"}

    def learn(self, date: str) -> bool:
        """Go by a service's clock from now on, as its header Date tells it; False where that can't be read."""
        try:
            self.skew = email.utils.parsedate_to_datetime(date).astimezone(UTC) - self.now()
        except (ValueError, TypeError):
            return False
        return True


def path(key: str) -> str:
    """A key in an address."""
    return quote(key, safe="/-_.~")


def query(values: Mapping[str, str]) -> str:
    """A query, in the order in which it is signed."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(values[name], safe='-_.~')}" for name in sorted(values))


def _host(url: str) -> str:
    """The header Host that goes with an address: without the port that is the scheme's own."""
    parts = urlsplit(url)
    netloc = parts.netloc.lower()
    return netloc.removesuffix(":443" if parts.scheme == "https" else ":80")
