"""Every path that an export reads from outside, and what happens when it is away, as data: at intake, before a stage and during one.

docs/recovery.md shows it (`python -m daemon.running.rules.reads docs/recovery.md` writes it there), and tests/runner/test_away.py makes
each of these paths go away and come back at each moment at which an export waits for it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

BEGIN, END = "<!-- what is read from outside: begin -->", "<!-- what is read from outside: end -->"


class Moment(StrEnum):
    """When something may go away."""

    INTAKE = "when the checkpoint is taken"
    BEFORE = "before a stage that starts"
    DURING = "while a stage runs"


ALWAYS = (Moment.INTAKE, Moment.BEFORE, Moment.DURING)
WAITS = "the export waits"
SILENT = "told after 5 s; no other export waits for it"
AGAIN = "the attempt is tried again, not counted"


@dataclass(frozen=True)
class Outside:
    """One path, or a kind of paths."""

    name: str
    named_by: str
    """Who says where it lies."""
    intake: str
    before: str
    during: str
    """What happens where it is missing or unreadable at that moment, as clauses."""
    changed: str
    """What happens where its content is another one afterwards."""
    slow: str = SILENT
    """What happens while its file system does not answer."""
    waits: tuple[Moment, ...] = ()
    """When an export waits for it."""
    deleted: bool = True
    """Whether it is waited for where it is gone, and not only where it is there and unreadable."""


TABLE = (
    Outside(
        "checkpoint", "`watch.roots`", "it is not taken; each scan looks again", "not read: the pin is", "not read: the pin is",
        "it is another checkpoint; if the pin shares the file, the export ends as superseded",
        slow="told after 10 s (`root-silent`); only the roots on that mount wait",
    ),
    Outside(
        "a run's `ckptd.toml`", "the run's directory", "the main configuration counts", "the configuration of before counts", "not read",
        "the stages that it changes are made again", slow="after 5 s the configuration of before counts",
    ),
    Outside(
        "pin", "`pin.directory`, `state.directory`", "the checkpoint is not taken; each scan tries again", WAITS, AGAIN,
        "a file that the trainer rewrote ends the export as superseded", slow="everything waits, as for the state", waits=ALWAYS[1:],
    ),
    Outside(
        "base", "the adapter's name, `base.map`, `base.search`, the Hugging Face cache", WAITS, WAITS, AGAIN,
        "when it has not changed for 5 s, what was made of it is made again", waits=ALWAYS,
    ),
    Outside(
        "a file of the base", "config, tokenizer, weights; those that its index names; links into the Hugging Face cache", WAITS, WAITS,
        AGAIN, "as for the base", waits=ALWAYS,
    ),
    Outside(
        "adapter to add", "`merge.add`", "the checkpoint is taken when it is there: keep it until then", "not read: the pin is",
        "not read: the pin is", "checkpoints that are taken later have the new one", slow="it counts as missing after 2 s",
        waits=ALWAYS[:1],
    ),
    Outside(
        "prompts", "`validate.prompts`", WAITS, WAITS, AGAIN, "the stages that read them are made again", waits=ALWAYS,
    ),
    Outside(
        "data for checks and calibration", "`validate.data`", WAITS, WAITS, AGAIN, "the stages that read them are made again", waits=ALWAYS,
    ),
    Outside(
        "toolchain", "`STATE/toolchains`",
        "not looked at", "the stages that need it wait; one that was never installed, or was removed, fails them", AGAIN,
        "`ckptd toolchain check` finds it", waits=ALWAYS[1:],
    ),
    Outside(
        "output", "`output.directory`", "the export waits; a folder that was deleted is made again",
        "the export waits; a folder that was deleted is made again", AGAIN, "a finished stage whose output is not whole is made again",
        slow="everything that writes there waits", waits=ALWAYS[1:], deleted=False,
    ),
    Outside(
        "state", "`state.directory`", "the journal can't be written: everything waits", "everything waits", "the result is recorded later",
        "the daemon ends if the journal was replaced", slow="everything waits",
    ),
)  # fmt: skip


def render() -> str:
    """The table in Markdown."""
    head = ["read from outside", "named by", *Moment, "changed", "does not answer"]
    rows = [[path.name, path.named_by, path.intake, path.before, path.during, path.changed, path.slow] for path in TABLE]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def put_into(page: str) -> str:
    """A page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}{END}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(put_into(target.read_text(encoding="utf-8")), encoding="utf-8")
