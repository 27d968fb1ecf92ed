"""Checks that what fills in the chat template in a folder of graphs writes what the checkpoint's template writes.

Called by an artifact's check, beside the example. The folder's script runs in a process of its own, as a user's program would import it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from handlers.folder.examples import CHAT
from handlers.texts import chat
from handlers.texts.rows import RowRefused
from handlers.validate.files.expected import Expected

SECONDS = 120
MESSAGES = [{"role": "user", "content": "How are <you>?\n"}]
_RUN = """
import json, runpy, sys
from pathlib import Path
print(json.dumps(runpy.run_path(sys.argv[1])["render"](Path(sys.argv[2]), json.loads(sys.argv[3]))))
"""
_TIMES = "strftime_now"
"""What makes a template write something else on another day."""


def fault(folder: Path, wanted: Expected | None) -> str | None:
    """Say why the folder's chat_template.py does not write a question as the checkpoint's template does, in one sentence; None when it
    does, or where there is nothing to compare."""
    if wanted is None or not wanted.templates or _TIMES in wanted.templates[0] or not (folder / CHAT).is_file():
        return None
    try:
        theirs = chat.compiled(wanted.templates[0], wanted.names).write(
            {"messages": MESSAGES, "tools": None, "documents": None}, answer=True
        )
    except RowRefused:
        return None
    command = [sys.executable, "-I", "-c", _RUN, str(folder / CHAT), str(folder), json.dumps(MESSAGES)]
    try:
        done = subprocess.run(
            command, env=dict(os.environ), capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=SECONDS,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"its {CHAT} took longer than {SECONDS} seconds"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return f"its {CHAT} does not run: {lines[-1][:300] if lines else f'exit code {done.returncode}'}"
    mine = json.loads(done.stdout)
    return None if mine == theirs else f"its {CHAT} writes {mine[:200]!r} instead of {theirs[:200]!r}"
