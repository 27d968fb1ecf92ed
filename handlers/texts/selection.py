"""The texts for each purpose, comparison and calibration, from what the configuration names, else from what is built in.

Called by the stages `reference` and `calibration`, and by every stage that needs texts to measure or calibrate with. All of them make the
same choice from the same files, so that no text is ever both compared on and calibrated with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.values import digest_of
from handlers.texts import split
from handlers.texts.built_in import BUILT_IN, FURTHER
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.rows import RowRefused, Text
from handlers.texts.sources import Source, sources_of

STAGE = "calibration"
"""The stage whose output holds the texts to calibrate with, where the plan has it."""
FILE = "texts.json"
_OPERATION = "read the calibration texts"
ENOUGH = 32
"""Texts to calibrate with from which on the live model is not asked for more."""
BUILT_IN_SOURCE = "built-in texts"
SAMPLED_SOURCE = "texts sampled from the live model"


@dataclass(frozen=True)
class Texts:
    """The texts for one purpose."""

    texts: tuple[Text, ...]
    sources: tuple[tuple[str, int], ...]
    """Where they come from, for people, and how many from each."""
    warnings: tuple[str, ...] = ()

    @property
    def plain(self) -> list[str]:
        """What the model reads."""
        return [text.text for text in self.texts]

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over the texts in their order."""
        return digest_of(self.plain)


@dataclass
class _Choice:
    """What was found for both purposes, not written for the model yet."""

    comparison: list[Text] = field(default_factory=list)
    compared: str = BUILT_IN_SOURCE
    as_they_are: bool = True
    """Built-in texts and the lines of a text file are run as they are: neither cut nor changed."""
    calibration: list[tuple[str, list[Text]]] = field(default_factory=list)
    """Source → its texts, in the order in which they are taken."""
    further: list[Text] = field(default_factory=list)
    """What else is for comparison, should the first ones not suffice."""
    warnings: list[str] = field(default_factory=list)


def comparison_texts(options: ValidateOptions, rendering: Rendering) -> Texts:
    """Return the texts that artifacts are compared on. Raises Permanent where what the configuration names can't be read or holds none."""
    choice = _choose(options)
    texts, refused = _compared(choice, rendering)
    if not texts:
        raise Permanent(FaultCode.DATA_EMPTY, "read the texts for validation", f"no text can be used: {refused[0]}",
                        "give other texts in validate.prompts or validate.data", path=choice.compared)  # fmt: skip
    warnings = [*choice.warnings, *_say_left_out(refused)]
    if len(texts) < options.samples:
        source = "built-in prompts" if choice.compared == BUILT_IN_SOURCE else f"of {choice.compared}"
        warnings.append(f"{options.samples} samples were requested, but only {len(texts)} {source} exist: all of them were used.")
    return Texts(tuple(texts), ((choice.compared, len(texts)),), tuple(warnings))


def made_up(pictures: bool, count: int) -> Texts:
    """Return the names of so many pictures or sounds that the checks make, for models that read no text."""
    name = "picture" if pictures else "sound"
    return Texts(tuple(Text(f"{name}-{number}") for number in range(count)), ((f"made-up {name}s", count),))


def calibration_texts(context: StageContext, count: int, folder: Path) -> Texts:
    """At most `count` texts to calibrate or measure with, none of which artifacts are compared on.

    They are those of the stage `calibration` where it ran for this job; else they are read here, without any that the live model would
    have been asked for. `folder`: the model's that the stage works on, for where it is run without a merge. Raises Permanent where what the
    configuration names can't be read.
    """
    made = context.inputs.get(STAGE)
    if made is not None:
        return read(Path(made), count)
    return choose_calibration(context.work.validation, Rendering.of(ModelFiles.of_job(context, folder)), count)


Ask = Callable[[int], Sequence[str]]
"""Gives at most so many texts that the live model wrote."""


def choose_calibration(options: ValidateOptions, rendering: Rendering, count: int, ask: Ask | None = None) -> Texts:
    """At most `count` texts that `comparison_texts` does not give. `ask` is asked where the configuration names no source, or one that is
    too small."""
    choice = _choose(options)
    compared, _ = _compared(choice, rendering)
    texts: list[Text] = []
    sources: list[tuple[str, int]] = []
    refused: list[str] = []

    def take(source: str, candidates: Iterable[Text]) -> None:
        written, why = _written(candidates, rendering, count - len(texts), [*compared, *choice.comparison, *texts])
        texts.extend(written)
        refused.extend(why)
        if written:
            sources.append((source, len(written)))

    for source, candidates in choice.calibration:
        take(source, candidates)
    enough = min(count, ENOUGH)
    if ask is not None and len(texts) < enough:
        take(SAMPLED_SOURCE, [Text(line) for line in ask(enough - len(texts))])
    take(BUILT_IN_SOURCE, [Text(line) for line in (*BUILT_IN, *FURTHER)])
    return Texts(tuple(texts), tuple(sources), (*choice.warnings, *_say_left_out(refused)))


def further_texts(options: ValidateOptions, rendering: Rendering, count: int) -> tuple[list[Text], split.Apart]:
    """At most `count` texts to compare on beyond those of `comparison_texts`, of the data set that the configuration names; and what lets
    texts that the live model writes through, if they are none of these and serve no other purpose."""
    choice = _choose(options)
    compared, _ = _compared(choice, rendering)
    further, _ = _written(choice.further, rendering, count, [*compared, *choice.comparison])
    calibrating = [text for _, texts in choice.calibration for text in texts]
    built_in = [Text(line) for line in (*BUILT_IN, *FURTHER)]
    return further, split.Apart([*compared, *choice.comparison, *further, *calibrating, *built_in])


def _choose(options: ValidateOptions) -> _Choice:
    choice = _Choice()
    for source in sources_of(options.prompts, options.data):
        wanted = options.samples if not choice.comparison else 0
        compared, others, further = _split(source, wanted)
        choice.further += further
        if wanted:
            choice.comparison, choice.compared, choice.as_they_are = compared, _name(source), source.of_lines
        choice.calibration.append((_name(source), others))
        choice.warnings += source.warnings
    if not choice.comparison:
        choice.comparison = [Text(line) for line in BUILT_IN[: options.samples]]
    return choice


def _split(source: Source, wanted: int) -> tuple[list[Text], list[Text], list[Text]]:
    if source.is_prompts:
        return split.by_order(list(source.texts()), wanted)
    return split.by_digest(source.texts(), wanted)


def _name(source: Source) -> str:
    read = f"; read: {source.read}" if source.read else ""
    return f"{source.shown} ({source.setting}{read})"


def _compared(choice: _Choice, rendering: Rendering) -> tuple[list[Text], list[str]]:
    """Return the texts to compare on as the model reads them, and why some could not be written."""
    texts, refused = [], []
    for text in choice.comparison:
        try:
            texts.append(text if choice.as_they_are else rendering.write(text))
        except RowRefused as error:
            refused.append(str(error))
    return texts, refused


def _written(candidates: Iterable[Text], rendering: Rendering, wanted: int, others: Sequence[Text]) -> tuple[list[Text], list[str]]:
    """Return the first `wanted` candidates as the model reads them, none of `others` among them, and why some could not be written."""
    written: list[Text] = []
    refused: list[str] = []
    apart = split.Apart(others)
    for candidate in candidates:
        if len(written) >= wanted:
            break
        if not apart.is_new(candidate):
            continue
        try:
            text = rendering.write(candidate)
        except RowRefused as error:
            refused.append(str(error))
            continue
        if apart.takes(text, of=candidate):
            written.append(text)
    return written, refused


def _say_left_out(refused: Sequence[str]) -> list[str]:
    what = "1 text was" if len(refused) == 1 else f"{len(refused)} texts were"
    return [f"{what} left out; the first, because {refused[0]}."] if refused else []


def write(folder: Path, texts: Texts) -> None:
    """Leave the texts of the stage `calibration` in its folder."""
    value = {"texts": texts.plain, "sources": [list(source) for source in texts.sources], "warnings": list(texts.warnings)}
    write_atomic(folder / FILE, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path, count: int) -> Texts:
    """Return the first `count` texts that `write` left. Raises Permanent where it left none."""
    try:
        value = json.loads((folder / FILE).read_bytes())
        texts = tuple(Text(str(text)) for text in value["texts"][:count])
        left, sources = len(texts), []
        for name, number in value["sources"]:
            if left > 0:
                sources.append((str(name), min(left, int(number))))
            left -= int(number)
        return Texts(texts, tuple(sources), tuple(map(str, value["warnings"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "run `ckptd queue retry` with the export's id; report it if it happens again"
        cause = f"{type(error).__name__}: {error}"
        raise Permanent(FaultCode.BAD_RECORD, _OPERATION, cause, remedy, path=folder / FILE) from None
