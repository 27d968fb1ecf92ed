"""What is to be known beside the figures of the table: each caveat once, with the rows and columns that it is about. Pure.

Called by `html`. Caveats are what stages warned of, ways that were taken instead of others, and what nobody checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from daemon.contract import units
from daemon.contract.jobs.plan import check_of
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.language.lists import sentences
from handlers.report.model import Report

LIKENESS = to_translate("agreement, KL, error")
"""The columns that the stage `reference` gives the measure for."""
SPEED = to_translate("speed")
EXPORT = to_translate("export")
"""All of it."""
_COLUMNS = {"reference": LIKENESS, "speed": SPEED, "job": EXPORT}
"""Stage → what its warnings are about; those of an artifact's stage and of its check are about its row."""


@dataclass(frozen=True)
class Note:
    """A caveat with its number."""

    number: int
    about: tuple[str, ...]
    """Rows (variants) and columns; the name of a stage where it is about all."""
    text: str


def notes(report: Report) -> tuple[Note, ...]:
    """The caveats, each text once."""
    texts: dict[str, list[str]] = {}
    for subject, text in (*_replacements(report), *_warnings(report), *_fallbacks(report), *_gaps(report), *_speeds(report)):
        subjects = texts.setdefault(text, [])
        if subject not in subjects:
            subjects.append(subject)
    return tuple(Note(number, tuple(subjects), text) for number, (text, subjects) in enumerate(texts.items(), 1))


def gaps(report: Report) -> dict[str, list[str]]:
    """What was not verified, by the reason; a failure that has an entry of its own is only named."""
    entries = {sentences(artifact.reasons): artifact.failed_stage for artifact in report.artifacts if artifact.failed_stage}
    by_reason: dict[str, list[str]] = {}
    for gap in report.not_verified:
        why = translated("{stage} failed, see above").format(stage=entries[gap.why]) if gap.why in entries else gap.why
        by_reason.setdefault(why, []).append(gap.what)
    return by_reason


def _subject(report: Report, stage: str) -> str:
    """What a stage's words are about."""
    for artifact in report.artifacts:
        check = check_of(artifact.variant)
        if stage in (artifact.variant, check.name if check else ""):
            return artifact.variant
    return _COLUMNS.get(stage, stage)


def _replacements(report: Report) -> Iterator[tuple[str, str]]:
    for story in report.replaced:
        yield from ((name, story.sentence) for name in (story.asked, story.taken) if name)


def _warnings(report: Report) -> Iterator[tuple[str, str]]:
    for warning in report.warnings:
        subject = _subject(report, warning.source)
        yield subject, warning.text.removeprefix(f"{subject}: ")  # the page names the row itself


def _fallbacks(report: Report) -> Iterator[tuple[str, str]]:
    for source, fallback in report.fallbacks:
        words = translated("{taken} instead of {wanted}: {reason}")
        yield _subject(report, source), words.format(taken=fallback.taken, wanted=fallback.wanted, reason=fallback.reason)


def _gaps(report: Report) -> Iterator[tuple[str, str]]:
    for why, gap in gaps(report).items():
        parts: dict[str, list[str]] = {}
        for variant, _, part in (what.partition(": ") for what in gap):
            parts.setdefault(variant, []).append(part)
        for variant, names in parts.items():
            yield variant, translated("not verified: {parts}: {why}").format(parts=sentences(names), why=why)


def _speeds(report: Report) -> Iterator[tuple[str, str]]:
    """Why an artifact with more tokens a second than another has the lower factor over PyTorch; of the first such pair."""
    known = [
        (artifact.variant, speed, factor)
        for artifact in report.artifacts
        if (speed := artifact.measured.tokens_per_second) is not None and (factor := artifact.measured.speed_over_pytorch) is not None
    ]
    for name, speed, factor in known:
        for other, lower, higher in known:
            if speed > lower and units.times(factor) != units.times(higher) and factor < higher:
                words = translated(
                    "{name} has more tokens/s than {other} but a lower factor: each artifact was measured beside PyTorch in its own turns,"
                    " and PyTorch was faster in the turns of {name}. Compare artifacts by the factor."
                )
                yield SPEED, words.format(name=name, other=other)
                return
