"""Checks that what fills in the chat template in a folder of graphs writes what the checkpoint's template writes.

Called by an artifact's check, beside the example. The folder's script runs in a process of its own, as a user's program would import it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from handlers.folder.examples import CHAT
from handlers.texts import chat
from handlers.texts.rows import RowRefused
from handlers.validate.files.expected import Expected
from handlers.validate.folders.programs import NoAnswer, output_of

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
        mine = json.loads(output_of(CHAT, command, SECONDS))
    except NoAnswer as why:
        return str(why)
    return None if mine == theirs else f"its {CHAT} writes {mine[:200]!r} instead of {theirs[:200]!r}"
