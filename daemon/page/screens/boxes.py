"""What the page of many boxes shows: answers of other daemons, which are data, so that every part is looked at for its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from daemon.contract.faults.text import printable
from daemon.contract.light import dataclass
from daemon.contract.values import number_at, text_at, value_at, whole_at
from daemon.page.peers import Peer

MOST_JOBS = 5
MOST_SAID = 20
"""Reasons why a daemon is unwell, and states of exports, that are shown."""
MOST_TEXT = 300
"""Letters of a text that are shown."""


@dataclass(frozen=True)
class Work:
    """An open export of another daemon."""

    run: str
    step: int | None
    activity: str
    reason: str
    left_seconds: float | None


@dataclass(frozen=True)
class Box:
    """A daemon and what it said last."""

    address: str
    """Of its page; "" for this daemon."""
    host: str
    """The name of its machine, where it says it."""
    version: str
    verdict: str
    unwell: tuple[str, ...]
    counts: Mapping[str, int]
    jobs: tuple[Work, ...]
    at: str | None
    """When it answered last; None if it never did."""
    age_seconds: float | None
    problem: str | None
    """Why it does not answer now."""


def boxes(peers: tuple[Peer, ...]) -> list[Box]:
    """Return what is shown of the other daemons."""
    return [
        _box(peer.address, peer.status or {}, peer.at, peer.age_seconds, peer.problem and _short(peer.problem)) for peer in peers
    ]  # fmt: skip


def _box(address: str, status: Mapping[str, Any], at: str | None, age: float | None, problem: str | None) -> Box:
    counts, rows = value_at(status, "counts"), value_at(status, "jobs")
    running = value_at(status, "daemon", "running") is True
    states = list(counts)[:MOST_SAID] if isinstance(counts, dict) else []
    unwell = value_at(status, "daemon", "unwell")
    return Box(
        address, _short(text_at(status, "daemon", "host") or ""), _short(text_at(status, "version") or ""),
        _short(text_at(status, "daemon", "verdict") or "") if running else "not running" if status else "",
        tuple(_short(text) for text in unwell[:MOST_SAID] if isinstance(text, str)) if isinstance(unwell, list) else (),
        {_short(state): count for state in states if (count := whole_at(counts, state)) is not None},
        tuple(_works(rows if isinstance(rows, list) else []))[:MOST_JOBS], at, age, problem,
    )  # fmt: skip


def _works(rows: list[Any]) -> Iterator[Work]:
    """The open exports, those that run first."""
    works = [
        Work(
            _short(text_at(row, "run") or "?"), whole_at(row, "step"), _short(text_at(row, "activity") or "?"),
            _short(text_at(row, "reason") or ""), number_at(row, "left_seconds"),
        )
        for row in rows
        if text_at(row, "state") in ("pending", "running")
    ]  # fmt: skip
    yield from sorted(works, key=lambda work: work.activity != "running")


def _short(text: str) -> str:
    """What another machine said, as every line that is shown: short, in one line, without controls or halves of surrogate pairs."""
    short = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"
    return printable(short.encode(errors="replace").decode())
