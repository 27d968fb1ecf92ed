"""The layer itself: what it makes fail, what it lets through, and that it says so where it can't work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.faults import layer
from tests.faults.calls import KINDS
from tests.faults.layer import Faults, Rule

PYTHON = [sys.executable, "-I", "-c"]
TRY = """
import errno, json, os, sys
folder = sys.argv[1]
def attempt(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
"""
EACH = {
    "write": "open(f'{folder}/file', 'w').close(); fd = os.open(f'{folder}/file', os.O_RDWR); said = [attempt(os.write, fd, b'x'),"
    " attempt(os.pwrite, fd, b'x', 0), attempt(os.writev, fd, [b'x']), attempt(os.sendfile, fd, os.open('/etc/passwd', 0), 0, 1)]",
    "fsync": "fd = os.open(f'{folder}/file', os.O_RDWR | os.O_CREAT); said = [attempt(os.fsync, fd), attempt(os.fdatasync, fd)]",
    "rename": "names = [f'{folder}/{name}' for name in 'abcde']; open(names[0], 'w').close();"
    " said = [attempt(os.rename, names[0], names[1]), attempt(os.replace, *[n for n in names if os.path.exists(n)], names[2])]",
    "link": "open(f'{folder}/a', 'w').close(); said = [attempt(os.link, f'{folder}/a', f'{folder}/b'), attempt(os.link, f'{folder}/a',"
    " f'{folder}/c')]",
    "symlink": "said = [attempt(os.symlink, 'x', f'{folder}/a'), attempt(os.symlink, 'x', 'b', dir_fd=os.open(folder, 0))]",
    "mkdir": "said = [attempt(os.mkdir, f'{folder}/a'), attempt(os.mkdir, 'b', dir_fd=os.open(folder, 0))]",
    "open": "said = [attempt(os.open, folder, os.O_RDONLY), attempt(os.open, f'{folder}/a', os.O_CREAT)]",
    "open-to-write": "os.open(folder, 0); said = [attempt(os.open, f'{folder}/a', os.O_CREAT), attempt(os.open, f'{folder}/b',"
    " os.O_CREAT | os.O_WRONLY)]",
    "unlink": "[open(f'{folder}/{n}', 'w').close() for n in 'ab']; os.mkdir(f'{folder}/c'); said = [attempt(os.unlink, f'{folder}/a'),"
    " attempt(os.unlink, 'b', dir_fd=os.open(folder, 0)), attempt(os.rmdir, f'{folder}/c')]",
    "truncate": "fd = os.open(f'{folder}/f', os.O_RDWR | os.O_CREAT); said = [attempt(os.ftruncate, fd, 1), attempt(os.truncate,"
    " f'{folder}/f', 2), attempt(os.posix_fallocate, fd, 0, 9)]",
}


def answer(faults: Faults, program: str, folder: Path) -> list[str]:
    done = faults.run([*PYTHON, f"{TRY}{program}\nprint(json.dumps(said))", str(folder)])
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_every_kind_has_a_trial_below() -> None:
    assert set(EACH) == set(KINDS)


@pytest.mark.parametrize("kind", EACH)
def test_each_call_of_a_kind_fails_in_its_turn_and_no_other(tmp_path: Path, kind: str) -> None:
    plain = Rule(kind, below=tmp_path / "plain")
    (tmp_path / "plain").mkdir()
    with Faults(plain) as faults:
        calm = answer(faults, EACH[kind], tmp_path / "plain")
        assert set(calm) == {"ok"}, "without faults everything goes through"
        assert faults.seen == len(calm), faults.calls
    for nth in range(1, len(calm) + 1):
        folder = tmp_path / str(nth)
        folder.mkdir()
        with Faults(Rule(kind, errno.ESTALE, nth=nth, below=folder)) as faults:
            said = answer(faults, EACH[kind], folder)
            assert said == ["ESTALE" if at == nth else "ok" for at in range(1, len(calm) + 1)]
            assert [call.errno for call in faults.calls] == [errno.ESTALE if at == nth else None for at in range(1, len(calm) + 1)]


def test_a_decider_fails_what_it_likes_and_is_told_kinds_and_paths(tmp_path: Path) -> None:
    asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def decide(kinds: Collection[str], paths: tuple[str, ...]) -> int | None:
        if str(tmp_path / "d") in paths[0]:
            asked.append((tuple(kinds), paths))
        return errno.EDQUOT if paths[0] == str(tmp_path / "d" / "b") else None

    (tmp_path / "d").mkdir()
    program = "said = [attempt(os.mkdir, f'{folder}/d/a'), attempt(os.mkdir, f'{folder}/d/b'), attempt(os.mkdir, f'{folder}/d/c')]"
    with Faults(kinds=["mkdir"]) as faults:
        faults.set(decider=decide)
        assert answer(faults, program, tmp_path) == ["ok", "EDQUOT", "ok"]
        assert asked == [(("mkdir",), (str(tmp_path / "d" / name),)) for name in "abc"]
        assert [call.errno for call in faults.failed] == [errno.EDQUOT]


@pytest.mark.parametrize(("nth", "calls", "expected"), [(3, 1, "..X..."), (2, 3, ".XXX.."), (4, None, "...XXX"), (9, 1, "......")])
def test_one_call_or_some_or_all_from_one_on_fail(tmp_path: Path, nth: int, calls: int | None, expected: str) -> None:
    program = "fd = os.open(f'{folder}/f', os.O_CREAT); said = [attempt(os.fsync, fd) for _ in range(6)]"
    with Faults(Rule("fsync", errno.EIO, nth=nth, calls=calls)) as faults:
        assert answer(faults, program, tmp_path) == ["EIO" if sign == "X" else "ok" for sign in expected]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.ESTALE])
def test_the_errno_is_the_one_that_was_chosen(tmp_path: Path, number: int) -> None:
    with Faults(Rule("open", number, below=tmp_path)) as faults:
        assert answer(faults, "said = [attempt(open, f'{folder}/f', 'w')]", tmp_path) == [errno.errorcode[number]]


def test_only_what_lies_below_the_folder_fails_however_it_is_named(tmp_path: Path) -> None:
    inside, beside = tmp_path / "in", tmp_path / "in-between"
    inside.mkdir()
    beside.mkdir()
    program = """
os.chdir(folder)
names = ["f", "../in-between/f", "./sub/../f", "../in/f", folder + "/f", folder + "-between/f"]
os.mkdir("sub")
said = [attempt(os.open, name, os.O_CREAT | os.O_RDWR) for name in names]
"""
    with Faults(Rule("open-to-write", errno.EACCES, calls=None, below=inside)) as faults:
        assert answer(faults, program, inside) == ["EACCES", "ok", "EACCES", "EACCES", "EACCES", "ok"]


def test_a_grandchild_is_under_the_layer_too(tmp_path: Path) -> None:
    inner = f"{TRY}fd = os.open(f'{{folder}}/f', os.O_CREAT); print([attempt(os.fsync, fd) for _ in range(3)])"
    program = (
        f"import subprocess; said = [subprocess.run([sys.executable, '-c', {inner!r}, folder], capture_output=True, text=True).stdout]"
    )
    with Faults(Rule("fsync", errno.EIO, nth=2, below=tmp_path)) as faults:
        assert answer(faults, program, tmp_path) == ["['ok', 'EIO', 'ok']\n"]


def test_a_commit_of_sqlite_meets_the_failing_fsync(tmp_path: Path) -> None:
    program = """
import sqlite3
connection = sqlite3.connect(f"{folder}/db", isolation_level=None)
connection.execute("CREATE TABLE t (x)")
said = []
for value in range(3):
    try:
        connection.execute("BEGIN"); connection.execute("INSERT INTO t VALUES (?)", (value,)); connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        said.append(str(error))
        if connection.in_transaction: connection.execute("ROLLBACK")
said += [row[0] for row in connection.execute("SELECT x FROM t")]
"""
    with Faults(Rule("fsync", below=tmp_path)) as faults:
        assert answer(faults, program, tmp_path) == [0, 1, 2]
        total = faults.seen
    (tmp_path / "db").unlink()
    with Faults(Rule("fsync", errno.EIO, nth=total, below=tmp_path)) as faults:
        assert answer(faults, program, tmp_path) == ["disk I/O error", 0, 1]


def test_the_rules_can_change_while_the_process_runs(tmp_path: Path) -> None:
    program = f"{TRY}fd = os.open(f'{{folder}}/f', os.O_CREAT)\nfor line in sys.stdin: print(attempt(os.fsync, fd), flush=True)"
    with Faults(kinds=["fsync"]) as faults:
        process = faults.start([*PYTHON, program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = []
        for rule in (None, Rule("fsync", errno.EIO), None, Rule("fsync", errno.ENOSPC)):
            faults.set(*filter(None, [rule]))
            process.stdin.write("\n")
            process.stdin.flush()
            said.append(process.stdout.readline().strip())
        assert said == ["ok", "EIO", "ok", "ENOSPC"]


def test_nothing_is_left_running_when_the_test_ends(tmp_path: Path) -> None:
    program = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
    with Faults(Rule("write")) as faults:
        process = faults.start([*PYTHON, program], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "up\n"
        (child,) = layer.psutil.Process(process.pid).children()
    assert process.returncode is not None
    end = time.monotonic() + 10  # a killed process may take its time to end
    while child.is_running() and child.status() != "zombie" and time.monotonic() < end:
        time.sleep(0.02)
    assert not child.is_running() or child.status() == "zombie"


def test_where_the_system_refuses_the_filter_the_test_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(Rule("write"))
    monkeypatch.setattr(faults, "_numbers", [])
    monkeypatch.setattr(faults, "_processor", type(faults._processor)(0, os.sysconf("SC_PAGESIZE") * 10**6, {}))  # no such call
    with pytest.raises(RuntimeError, match=r"Could not put the fault layer over a process: .* These tests need seccomp"):
        faults.start(["true"])


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="is none of"):
        Rule("fsyncc")
