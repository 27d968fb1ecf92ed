"""Completion in the three shells, by the commands that docs/operating.md names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")
ASKED = {
    "bash": 'source "$1"; COMP_WORDS=(ckptd {words}); COMP_CWORD={last}; _ckptd_completion ckptd; printf "%s\\n" "${{COMPREPLY[@]}}"',
    # zsh's own widget needs a terminal: what it evaluates is a call of `_arguments` or `_describe`.
    "zsh": 'compdef() {{ : }}; source "$1"; _describe() {{ print -l ${{(P)2}} }}; _arguments() {{ print -l "$@" }}; words=(ckptd {words});'
           " CURRENT={count}; _ckptd_completion",
    "fish": 'source $argv[1]; complete --do-complete "ckptd {words}"',
}  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """With a `ckptd` on the path that runs this checkout."""
    command = folder / "bin" / "ckptd"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m daemon "$@"\n')
    command.chmod(0o755)
    names = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTD_", "_CKPTD"))}
    return {**names, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(folder), "TERM": "dumb"}


def test_the_commands_that_the_page_names_print_a_script_for_each_shell(tmp_path: Path) -> None:
    named = re.findall(r"_CKPTD_COMPLETE=source_(\w+) ckptd", (ROOT / "docs" / "operating.md").read_text())
    assert set(named) == set(SHELLS)
    for shell in SHELLS:
        done = subprocess.run(
            ["ckptd"], env={**environment(tmp_path), "_CKPTD_COMPLETE": f"source_{shell}"}, capture_output=True, text=True, check=True
        )
        assert f"complete_{shell}" in done.stdout and "Usage" not in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_and_options(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        assert shell != "bash"
        pytest.skip(f"{shell} is not installed here")
    names = environment(tmp_path)
    script = tmp_path / f"completion.{shell}"
    done = subprocess.run(["ckptd"], env={**names, "_CKPTD_COMPLETE": f"source_{shell}"}, capture_output=True, text=True, check=True)
    script.write_text(done.stdout)
    for words, expected in (("sta", "status"), ("export --ba", "--base")):
        count = len(words.split()) + 1
        text = ASKED[shell].format(words=words, last=count - 1, count=count)
        flags = {"bash": ["--norc", "-c", text, "bash"], "zsh": ["-f", "-c", text, "zsh"], "fish": ["--no-config", "-c", text]}[shell]
        told = subprocess.run([program, *flags, str(script)], env=names, capture_output=True, text=True, check=False)
        assert re.search(rf"(^|[^\w-]){expected}\b", told.stdout), told
