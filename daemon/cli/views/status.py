"""What `ckptd status` and `ckptd list` show: the daemon and what is wrong with it, then a row for each export.

Made for one screen from 60 columns up: what is long is shortened in the middle or wrapped between words, and no column is left out. Where
there is no terminal nothing is shortened, so that programs and `grep` find what they look for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from daemon.cli.views.jobs import FEW, jobs_lines
from daemon.cli.views.layout import hanging
from daemon.cli.views.markup import terminal
from daemon.contract import units
from daemon.contract.language.catalog import translated
from daemon.journal.states import ENDED_JOB
from daemon.operating.log.wrapping import width_of
from daemon.operating.monitoring.status import rows
from daemon.operating.wording.exports import NONE
from daemon.operating.wording.notices import notices

if TYPE_CHECKING:
    from rich.console import Console

    from daemon.operating.monitoring.status import JobStatus, Snapshot

WATCH_SECONDS = 2.0
_SPARE_LINES = 2
"""Of the screen, for the prompt and the line before it."""
_LEAST_JOBS = 3


def print_status(value: Snapshot, *, everything: bool = False) -> None:
    """`ckptd status`; of what may be thousands the first few and a count, unless `everything` is asked for."""
    console = terminal(soft_wrap=True)
    height = console.height - _SPARE_LINES if console.is_terminal and not everything else None
    _print(console, status_lines(value, width_of(console), height, everything=everything))


def print_jobs(jobs: Sequence[JobStatus], *, none: str = NONE) -> None:
    """`ckptd list`. `none`: what is said where there are none."""
    console = terminal(soft_wrap=True)
    _print(console, jobs_lines(jobs, width_of(console)) if jobs else [Text(translated(none))])


def _print(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line)


def watch(ask: Callable[[], Snapshot]) -> None:
    """`ckptd status --watch`: the status again and again, until Ctrl-C; elsewhere than on a terminal one below the other."""
    console = terminal(soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        if not console.is_terminal:
            while True:
                _print(console, [*status_lines(ask(), width_of(console), None), Text()])
                time.sleep(WATCH_SECONDS)
        from rich.live import Live

        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
            while True:
                room, at = console.height - 1, datetime.now().astimezone().strftime("%H:%M:%S")
                said = Text(
                    translated("{time}, again every {pause}; Ctrl-C ends it").format(time=at, pause=units.duration(WATCH_SECONDS)), "dim"
                )
                live.update(Text("\n").join([said, *status_lines(ask(), width_of(console), room)[:room]]), refresh=True)
                time.sleep(WATCH_SECONDS)
    print_status(ask())


def status_lines(value: Snapshot, width: int | None, height: int | None, *, everything: bool = False) -> list[Text]:
    """All of `ckptd status`, in lines of at most `width` cells. `height`: lines that there is room for, as far as possible."""
    head = [line for label, text, style in notices(value, None if everything else FEW) for line in hanging(label, text, width, style=style)]
    jobs = rows(value)
    room = None if height is None else height - len(head)
    shown = jobs if room is None else _fitting(jobs, width, room)
    lines = [*head, *jobs_lines(shown, width)]
    if len(shown) < len(jobs):
        lines += hanging("", translated("and {count} more; `ckptd list` lists them all").format(count=len(jobs) - len(shown)), width)
    return lines


def _fitting(jobs: Sequence[JobStatus], width: int | None, room: int) -> list[JobStatus]:
    """As many of the jobs as there is room for: first those that are not finished, then the latest that are."""
    order = sorted(jobs, key=lambda job: (job.state in ENDED_JOB, job.activity == "waiting"))
    ended = [job for job in order if job.state in ENDED_JOB][::-1]
    order = [*(job for job in order if job.state not in ENDED_JOB), *ended]
    count = len(order)
    while count > _LEAST_JOBS and len(jobs_lines([job for job in jobs if job in order[:count]], width)) + (count < len(order)) > room:
        count -= 1
    return [job for job in jobs if job in order[:count]]
