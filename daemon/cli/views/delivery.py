"""What `ckptd deliver` prints: how a delivery stands, and what lies at a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daemon.cli.views.layout import Cell, Column, table
from daemon.cli.views.markup import say, terminal
from daemon.contract import units
from daemon.contract.faults.text import local_time
from daemon.contract.language.catalog import to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import labelled, names
from daemon.operating.log.wrapping import width_of

if TYPE_CHECKING:
    from daemon.contract.delivering.orders import Listed
    from daemon.operating.asked.by_hand import ByHand

_COLUMNS = (
    Column("version", least=12), Column("run", least=6), Column("step", least=5, right=True), Column("written", least=8),
    Column("note", "words", least=12),
)  # fmt: skip
_TITLES = to_translate("version"), to_translate("run"), to_translate("step"), to_translate("written"), to_translate("note")
_SAID = {
    "running": to_translate("{job} is being carried to {target}."),
    "dropped": to_translate("{job} is no longer to be carried to {target}."),
    "failed": to_translate("{job} does not lie at {target}"),
}


def say_row(row: ByHand, *, runs: bool) -> None:
    """Say how a delivery by hand stands. `runs`: whether a daemon does."""
    values = {"job": row.job, "target": row.target, "place": row.place or "", "version": row.version or ""}
    if row.state == "planned":
        line = translated_plural(
            "{job} to {target}: {variants}, {count} file, {size}", "{job} to {target}: {variants}, {count} files, {size}", row.files
        )
        say(line.format(**values, variants=names(row.variants), count=row.files, size=units.size(row.bytes)))
        state = translated_text(row.problem) if row.problem else translated("it can be reached, and would let us write")
        say("  " + labelled(row.target, state))
    elif row.state == "delivered":
        line = translated("{job} lies at {target}: {place} (version {version})").format(**values)
        say(line if row.entered else f"{line}; {translated('--again delivers it once more')}")
    elif row.state == "waiting" and row.problem and row.retry_at is not None and runs:
        line = translated("{job} does not lie at {target} yet, and is tried again at {time}")
        say(labelled(line.format(**values, time=local_time(row.retry_at, "seconds")), translated_text(row.problem)))
    elif row.state == "waiting" or (row.state == "running" and not runs):
        line = (
            translated("{job} is in the queue for {target}; `ckptd show {job}` says how far it is.") if runs
            else translated("{job} is in the queue for {target}; no daemon runs, so it is carried when one is started.")
        )  # fmt: skip
        say(line.format(**values))
    else:
        line = translated(_SAID[row.state]).format(**values)
        say(labelled(line, translated_text(row.problem)) if row.state == "failed" and row.problem else line)


def print_listed(rows: Sequence[Listed]) -> None:
    """What lies at a target, in columns."""
    if not rows:
        say(translated("Nothing that ckptd brought lies there."))
        return
    console = terminal(soft_wrap=True)
    cells = [
        [Cell(row.version), Cell(row.run), Cell(str(row.step)), Cell(local_time(row.at, "minute") if row.at else ""), Cell(_note(row))]
        for row in rows
    ]
    for lines in table(_COLUMNS, cells, width_of(console)):
        for line in lines:
            console.print(line)


def _note(row: Listed) -> str:
    if not row.whole:
        return translated("was not finished")
    return translated("what people get") if row.current else ""
