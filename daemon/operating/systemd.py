"""The notification protocol of systemd (sd_notify(3)): ready, reloading, stopping, watchdog. Does nothing without systemd."""

from __future__ import annotations

import os
import socket

from daemon.contract.faults.secrets import censored

PATIENCE_SECONDS = 2.0


def notify(state: str) -> bool:
    """Send a state such as "READY=1" to the service manager; False where none listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(PATIENCE_SECONDS)  # a manager that does not read must not hold up the main loop
            connection.connect(address)
            connection.sendall(censored(state).encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """The interval of the service manager's watchdog; None if it is off."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 1e6
