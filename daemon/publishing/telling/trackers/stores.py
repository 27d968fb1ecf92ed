"""Whether a tracker's files could be written: nothing is made to find out."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from daemon.contract.faults.advice import quoted
from daemon.system.filesystems.disks import nearest_existing


def fault_of_folder(folder: Path) -> str | None:
    """Why nothing could be written to a folder that is there or can be made, as a clause; None where it could."""
    there = nearest_existing(folder)
    if not there.is_dir():
        return f"{quoted(there)} is a file, or a link that leads nowhere; give a folder"
    return (
        None if os.access(there, os.W_OK | os.X_OK) else f"{quoted(there)} can't be written by this user; let the daemon's user write there"
    )


def fault_of_database(file: Path) -> str | None:
    """The same of a database, which is made where it is not there."""
    if not os.path.lexists(file):
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as database:
            database.execute("SELECT name FROM sqlite_master").fetchall()
    except sqlite3.Error as error:
        return f"{quoted(file)} can't be read as a database: {error}"
    return None if os.access(file, os.W_OK) else f"{quoted(file)} can't be written by this user; let the daemon's user write there"
