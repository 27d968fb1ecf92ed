"""A reader of the output that leaves (`ckptd list | head -1`) ends a verb as it ends other commands, and without a word.

An output that the caller has closed (`>&-`) changes nothing of what a verb gives.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import some

SIGPIPE_AS_CODE = 141


def code_and_errors(arguments: list[str], folder: Path, *, errors_too: bool) -> tuple[int, bytes]:
    """What a verb gives whose output nobody reads; `errors_too`: nor what it says on standard error."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ckptd", *arguments], stdout=writing, stderr=writing if errors_too else subprocess.PIPE,
            env=environment, cwd=folder, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writing)
    return done.returncode, done.stderr or b""


@pytest.mark.parametrize("errors_too", [False, True])
@pytest.mark.parametrize(
    "verb", some(["formats", "--help", "list", "--version", "formats --json", "status --exit-code", "config show"], of=3)
)
def test_a_reader_that_leaves_is_no_verdict(verb: str, errors_too: bool, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n[state]\ndirectory = "{tmp_path}/state"\n')
    needs = ["--config", str(config)] if verb.split()[0] in ("status", "list") else []
    assert code_and_errors([*verb.split(), *needs], tmp_path, errors_too=errors_too) == (SIGPIPE_AS_CODE, b"")


CLOSED = (">&-", "2>&-", "<&-", ">&- 2>&- <&-", "2>/dev/full")
GIVEN = (("config show", 0), ("formats --json", 0), ("nothing-like-a-verb", 2))


@pytest.mark.parametrize(("verb", "code", "closed"), some([(*given, closed) for given in GIVEN for closed in CLOSED], of=2))
def test_a_closed_output_is_no_verdict(verb: str, code: int, closed: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    command = f"exec {shlex.quote(sys.executable)} -m ckptd {verb} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=environment, cwd=tmp_path, timeout=120)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
