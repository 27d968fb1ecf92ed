"""Ports for servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def free_port() -> int:
    """Return a port that nobody has, and that the kernel gives to no client: a server that is away for a while needs it again."""
    first, last = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [port for port in range(10_000, 65_536) if not first <= port <= last] or list(range(first, last + 1))
    for port in random.sample(others, len(others)):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
