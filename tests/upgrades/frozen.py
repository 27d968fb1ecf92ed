"""Packs the state of a daemon into one file, and unpacks it elsewhere as if it had always been there.

A state knows absolute paths, inodes and times. Paths are stored as HOME and written anew; of each file its inode and time are listed
(MARKS), and when it is unpacked the new inode takes the place of the old one wherever a record of ours names it.
"""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from daemon.contract.jobs.messages import CheckpointRef
from daemon.publishing.exchange import ours

STATES = Path(__file__).with_name("states")
HOME = "/home-of-a-frozen-state"
MARKS = "marks.json"


def freeze(home: Path, target: Path) -> None:
    """Pack everything below `home`, which nobody uses now."""
    marks = {str(path.relative_to(home)): [path.lstat().st_ino, path.lstat().st_mtime_ns] for path in _below(home)}
    _rewrite(home, str(home), HOME, {})
    for path in _below(home):
        os.utime(path, ns=(marks[str(path.relative_to(home))][1],) * 2, follow_symlinks=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        archive.add(home, ".", filter=_plain)
        data = json.dumps(marks).encode()
        entry = tarfile.TarInfo(MARKS)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))


def thaw(archive: Path, home: Path) -> None:
    """Unpack a frozen state into the new folder `home`, with its paths and inodes as they are there."""
    home.mkdir()
    with tarfile.open(archive) as opened:
        opened.extractall(home, filter="tar")
    marks: dict[str, list[int]] = json.loads((home / MARKS).read_bytes())
    (home / MARKS).unlink()
    inodes = {old: (home / name).lstat().st_ino for name, (old, _) in marks.items()}
    _rewrite(home, HOME, str(home), inodes)
    for name, (_, time) in marks.items():
        os.utime(home / name, ns=(time, time), follow_symlinks=False)
    for record in (home / "state" / "published").glob("*.json"):
        record.rename(ours._record(record.parent, Path(json.loads(record.read_bytes())["target"])))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _below(home: Path) -> Iterator[Path]:
    return (path for path in sorted(home.rglob("*")) if not stat.S_ISSOCK(path.lstat().st_mode))


def _rewrite(home: Path, old: str, new: str, inodes: dict[int, int]) -> None:
    """Let texts, links and journals name other paths and inodes. Files are written in place: they keep their inode, mode and links."""
    for path in _below(home):
        if path.is_symlink():
            goal = os.readlink(path).replace(old, new)
            path.unlink()
            path.symlink_to(goal)
        elif path.suffix == ".sqlite3":
            _rewrite_journal(path, old, new)
        elif path.is_file() and _is_ours(path.relative_to(home)):
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
            written = text.replace(old, new)
            if path.name == "lent.json" or path.parent.name == "published":
                written = re.sub(r"\b\d+\b", lambda match: str(inodes.get(int(match[0]), match[0])), written)
            if written != text:
                path.write_text(written, encoding="utf-8", errors="surrogateescape")


def _is_ours(path: Path) -> bool:
    """Whether a file is a record of paths; what digests stand for (the trainers' files, pins, artifacts) stays as it is."""
    if path.parts[0] == "exports":
        return path.name == "lent.json" or path.name.startswith(".ckptd-owner-")
    return path.name == "config.toml" or (path.parts[0] == "state" and path.parts[1] not in ("pins", "backups") and path.suffix == ".json")


def _rewrite_journal(path: Path, old: str, new: str) -> None:
    """Identities are made of paths among others: by the same rule as when they were frozen, or every checkpoint would be a new one."""
    with closing(sqlite3.connect(path)) as connection:
        for job, identity, checkpoint in connection.execute("SELECT id, identity, checkpoint FROM job").fetchall():
            assert CheckpointRef.model_validate_json(checkpoint).identity == identity, job
            moved = CheckpointRef.model_validate_json(checkpoint.replace(old, new)).identity
            connection.execute("UPDATE job SET identity = ? WHERE id = ?", (moved, job))
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for column in [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")') if row[2] == "TEXT"]:
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?) WHERE instr("{column}", ?)', (old, new, old)
                )
        connection.commit()
        connection.execute("VACUUM")
