"""A reader of the output that leaves (`ckptd list | head -1`) ends a verb as it ends other commands, and without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
@pytest.mark.parametrize("verb", ["--help", "--version", "formats", "formats --json", "status --exit-code", "config preset edge", "list"])
def test_a_reader_that_leaves_is_no_verdict(verb: str, errors_too: bool, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n[state]\ndirectory = "{tmp_path}/state"\n')
    needs = ["--config", str(config)] if verb.split()[0] in ("status", "list") else []
    assert code_and_errors([*verb.split(), *needs], tmp_path, errors_too=errors_too) == (SIGPIPE_AS_CODE, b"")
