"""Reads the daemon's log file back, for `ckptd logs` and for the search of a job by its lines. Needs nothing of what writes it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from daemon.contract.values import Json
from daemon.journal.overview import is_meant


def follow(file: Path, *, tail: int, forever: bool, job: str = "") -> Iterator[Json]:
    """The last `tail` records of the log, then, if asked, each new one as it comes; survives rotation.

    `job`: of those alone of an export that is meant by that (`daemon.journal.overview.is_meant`).

    The open file is read to its end before a new one by its name is opened, so that rotation loses nothing.
    """
    stream: IO[bytes] | None = None
    first, half = True, b""
    try:
        while True:
            if stream is None:
                with contextlib.suppress(FileNotFoundError):
                    stream = open(file, "rb")  # noqa: SIM115
            if stream is not None:
                rotated = not _is_still(file, stream)
                *lines, half = (half + stream.read()).split(b"\n")
                records = (_record(line.decode(errors="replace")) for line in lines)
                wanted = (record for record in records if not job or is_meant(str(record.get("job", "")), job))
                yield from deque(wanted, maxlen=tail) if first else wanted
                first = False
                if rotated:
                    stream.close()
                    stream, half = None, b""
                    continue
            if not forever:
                return
            time.sleep(0.3)
    finally:
        if stream is not None:
            stream.close()


def _is_still(file: Path, stream: IO[bytes]) -> bool:
    """Whether `stream` is the file of that name and was not cut; while nothing has the name, it is."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return True
    return os.path.samestat(status, os.fstat(stream.fileno())) and status.st_size >= stream.tell()


def _record(line: str) -> Json:
    try:
        value = json.loads(line)
    except ValueError:
        return {"message": line.rstrip("\r\n")}
    return value if isinstance(value, dict) else {"message": line.rstrip("\r\n")}
