"""What a message may say of values that others chose: names quoted and bounded, third parties' texts without their advice, safe commands.

The rule: a remedy is a template of ours over values that were checked. A path or a name out of a checkpoint stands in quotes and in no
command. A command may hold paths of the user's own configuration, and directories that the watcher itself found below a root, if
`in_command` takes them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator

MOST_OF_SENTENCE = 600
"""Characters of a message in one line."""
MOST_OF_TEXT = 2000
"""Characters of a cause or a remedy that is kept, in journal and JSON; of a list each line has at most `MOST_OF_SENTENCE`."""
MOST_OF_LIST = 100
"""Lines of a list."""
MOST_OF_NAME = 160
"""Characters of a name or a path in a message."""
MOST_IN_COMMAND = 200
"""Characters of a path in a command: a longer message would be cut within it."""

_ADVICE = re.compile(
    r"\b(?:pip3?|conda|mamba|uv|npm|apt|apt-get|brew)\s+(?:-\S+\s+)*install\b|\bweights_only\s*=|\ballow_pickle\s*=|\badd_safe_globals\b"
    r"|\bsafe_globals\b|\btrust_remote_code\s*=\s*True|\bsudo\b|\b(?:curl|wget)\s+\S*://|\bif you trust\b|\bfrom a trusted source\b",
    re.IGNORECASE,
)
"""Words by which libraries tell what to do, which a file can make them say."""
_CLAUSE = re.compile(r"(?<=[.!?;])\s+|\n+|(?<=\))\s+(?=[A-Z])")
"""Between the sentences of a text."""


def shortened(text: str, most: int) -> str:
    """At most so many characters of a text: its begin and its end."""
    if len(text) <= most:
        return text
    end = min(most // 4, 60)
    return f"{text[: most - end - 1]}…{text[len(text) - end :]}"


def quoted(name: object, most: int = MOST_OF_NAME) -> str:
    """A name or a path that others chose, in quotation marks, in one line, at most so long."""
    return json.dumps(shortened(str(name), most), ensure_ascii=False)


def without_advice(text: str) -> str:
    """What a library says, without the sentences that tell a user to do something: what they propose is for the file's author to choose."""
    if not _ADVICE.search(text):
        return text
    kept = [clause for clause in _CLAUSE.split(text) if clause and not _ADVICE.search(clause)]
    return " ".join([*kept, "…"]) if kept else f"{re.split(r'[:.(]', text)[0][:80]} …" if not _ADVICE.search(text[:80]) else "…"


def in_command(path: str | os.PathLike[str]) -> str | None:
    """A path as a shell takes it; None for one that is in no command: it is long, or has characters that no terminal shows as they are."""
    name = os.fspath(path)
    return shlex.quote(name) if name.isprintable() and len(name) <= MOST_IN_COMMAND and os.path.isabs(name) else None


def bounded_list(text: str) -> str:
    """A text of several lines with so many of them, each so long, as a message may have."""
    lines = text.split("\n")
    more = len(lines) - MOST_OF_LIST
    if more > 0:
        lines = [*lines[: MOST_OF_LIST - 1], f"  … and {more} more", *([""] if text.endswith("\n") else [])]
    return "\n".join(shortened(line, MOST_OF_SENTENCE) for line in lines)


def whole_clauses(remedy: str, room: int) -> str:
    """As many of a remedy's alternatives as fit; a command is there as a whole or not at all."""
    if len(remedy) <= room:
        return remedy
    fitting = [end for end in _ends(remedy) if end <= room]
    return remedy[: fitting[-1]] if fitting else f"{remedy[: room - 1].partition('`')[0].rstrip(' :')}…"


def first_clause(remedy: str) -> str:
    """The first of a remedy's alternatives."""
    return remedy[: next(_ends(remedy), len(remedy))]


def _ends(remedy: str) -> Iterator[int]:
    """Where its alternatives end, but for the last; a semicolon within a command ends none."""
    marks = 0
    for match in re.finditer("`|; ", remedy):
        if match[0] == "`":
            marks += 1
        elif marks % 2 == 0:
            yield match.start()
