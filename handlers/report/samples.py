"""What base, live model and artifacts write after the same prompts, side by side. Pure; called by `build` and by the page's template.

Marked are the words that are not the live model's: in the base's text they show what the fine-tuning changed, in an artifact's what the
conversion did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from daemon.contract.jobs.figures import ReferenceFigures
from daemon.contract.language.catalog import to_translate, translated, translated_plural
from daemon.contract.language.lists import names
from handlers.report.model import Artifact, Sample

MOST_PROMPT = 600
"""Characters of a prompt that are shown: its end, after which the models go on."""
MOST_TEXT = 1500
"""Characters of a text that are shown and compared."""
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_BREAKS = re.compile(r"\n(?:[^\S\n]*\n){3,}")
"""Line breaks in a row that are counted."""
ENDS = to_translate("(ends here)")
MISSING = "(…)"


def collect(reference: ReferenceFigures, artifacts: tuple[Artifact, ...]) -> tuple[Sample, ...]:
    """The prompts with all answers."""
    rows = [sample for sample in reference.samples if sample.prompt is not None]
    answers = {
        artifact.variant: {sample.prompt: sample for sample in artifact.measured.samples if sample.prompt is not None}
        for artifact in artifacts
    }
    return tuple(
        Sample(
            prompt=row.prompt or "",
            base=row.base,
            live=row.text,
            artifacts={name: given[row.prompt].text for name, given in answers.items() if row.prompt in given},
        )
        for row in rows
        if row.text is not None
    )


def different_first(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The samples, those first in which an artifact writes something else than the live model."""
    return tuple(sorted(samples, key=lambda sample: all(text in (None, sample.live) for text in sample.artifacts.values())))


@dataclass(frozen=True)
class Cell:
    """One text with who wrote it. `parts` are (text, whether it is marked)."""

    title: str
    note: str
    parts: tuple[tuple[str, bool], ...]


def prompt_shown(prompt: str) -> str:
    """The end of a prompt; what goes before is counted."""
    left = len(prompt) - MOST_PROMPT
    if left <= 0:
        return prompt
    return translated("({count:,} characters before this) …{text}").format(count=left, text=prompt[left:])


def cells(sample: Sample) -> tuple[Cell, ...]:
    """The base, the live model, the artifacts: those that write the same stand together, those that write as the live model beside it."""
    live = sample.live or ""
    groups: dict[str, list[str]] = {}
    for variant, text in sample.artifacts.items():
        if text is not None:
            groups.setdefault(text, []).append(variant)
    shown = [] if sample.base is None else [_cell(translated("base, without fine-tuning"), live, sample.base)]
    same = groups.pop(live, [])
    note = translated("the same: {variants}").format(variants=names(same)) if same else ""
    shown.append(Cell(translated("live model, fine-tuned"), note, ((_cut(live), False),)))
    return (*shown, *(_cell(names(those), live, text) for text, those in groups.items()))


def _cell(title: str, live: str, text: str) -> Cell:
    note = translated("the same as the live model") if text == live else translated("differs where marked")
    return Cell(title, note, parts(_cut(live), _cut(text)))


def visible(text: str) -> str:
    """The text with what can't be seen told: one that is blank, and many line breaks in a row, which would be a tall empty box."""
    if text and not text.strip():
        if breaks := text.count("\n"):
            return _breaks(breaks)
        return translated_plural("({count} space)", "({count} spaces)", len(text)).format(count=len(text))
    return _BREAKS.sub(lambda match: f"\n{_breaks(match[0].count(chr(10)))}" + "\n" * (match.end() < len(text)), text)


def _breaks(count: int) -> str:
    return translated_plural("({count} line break)", "({count} line breaks)", count).format(count=count)


def _cut(text: str) -> str:
    text = visible(text)
    if len(text) <= MOST_TEXT:
        return text
    return translated("{text} … ({count:,} more characters)").format(text=text[:MOST_TEXT], count=len(text) - MOST_TEXT)


def parts(live: str, text: str) -> tuple[tuple[str, bool], ...]:
    """`text` in pieces, with a mark on each word that the live model does not write there, and on the place of words that it lacks."""
    mine, theirs = _WORDS.findall(live), _WORDS.findall(text)
    pieces: list[tuple[str, bool]] = []
    for kind, _, _, start, end in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        piece = "".join(theirs[start:end])
        if kind == "delete":
            piece = translated(ENDS) if end == len(theirs) else MISSING
        if pieces and pieces[-1][1] == (kind != "equal"):
            piece = pieces.pop()[0] + piece
        pieces.append((piece, kind != "equal"))
    return tuple(pieces)
