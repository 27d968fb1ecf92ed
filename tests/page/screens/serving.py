"""The pages of a state directory, as the daemon serves them, by the real server on a port of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.operating.outward import Serving
from daemon.page.server import Server


@contextmanager
def served(state: Path, output: Path, *, port: int = 0, **page: Any) -> Iterator[str]:
    """Yield the address of the pages of a state directory. `page`: keys of `[page]`."""
    settings = Settings.model_validate(
        {"limits": {"disk_reserve": 0}, "output": {"directory": output}, "state": {"directory": state}, "page": page}
    )
    journal = Journal(state / "journal.sqlite3")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    serving = Serving(settings, state, journal, lambda accept: (b"", "text/plain"), lambda: None, lambda: None)
    server = Server(serving, listener)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        thread.join(10)
        listener.close()
        journal.close()


def main() -> None:
    """Serve STATE OUTPUT PORT until it is interrupted."""
    import sys

    with served(Path(sys.argv[1]), Path(sys.argv[2]), port=int(sys.argv[3]), control="control" in sys.argv) as address:
        print(address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
