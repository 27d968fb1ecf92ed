"""The help, the version and completion import neither pydantic nor rich: each of them takes longer than all the rest."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPLETION = {"_CKPTD_COMPLETE": "complete_bash", "COMP_WORDS": "ckptd sta", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("--help",), {}, "Usage: ckptd"), (("queue", "retry", "-h"), {}, "Usage: ckptd queue retry"), (("version",), {}, "ckptd "),
        ((), COMPLETION, "status"),
    ],
)  # fmt: skip
def test_what_needs_no_settings_imports_none(words: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    code = (
        "import sys, daemon.cli.main; sys.argv = ['ckptd', *sys.argv[1:]]; daemon.cli.main.main();"
        " print(*({'pydantic', 'rich', 'structlog', 'sqlite3'} & set(sys.modules)), file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    assert said in answer.stdout and answer.stderr.strip() == ""
