"""Addresses of far ends, as people write them into the configuration. Light: declarations import it."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_address(value: str) -> bool:
    """Whether it is one of http or https with a host, and without a user, a password or a query, which logs would show."""
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and not parts.query
