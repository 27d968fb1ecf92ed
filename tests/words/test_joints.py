"""Recorded sentences are joined as the code joins them, with values of any kind in them: in Chinese every value stands in its clause.

A world of random clauses is made of the catalogue's templates, drawn so that a sentence more or less changes only the worlds that it is in.
What is shown must be one of a few texts: each clause either in Chinese, with its values as they are in the places of the translation, or,
where nobody could say where a value ends, in English as a whole.
"""

from __future__ import annotations

import bisect
import itertools
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pytest

from daemon.contract.faults.advice import quoted
from daemon.contract.faults.fault import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import use_language
from daemon.contract.language.recorded import translated_text
from daemon.contract.language.templates import Template, templates
from tests.words.recorded import translations

WORLDS = 200
"""Texts of each test."""
MOST = 200
"""Characters of a template: sentences of several longer ones are cut where they are shown."""
FEW = 5
"""Texts with such values that nobody could read."""
KNOWN = {text: chinese for (place, text), chinese in translations().items() if not place}
GLUED = re.compile(r"\w\{|\}\w|\}\{")
TEMPLATES = {
    template.english: template
    for several in (*templates().by_word.values(), templates().others)
    for template in several
    if template.names and template.english in KNOWN and template.english[:1] not in " ,;(." and not template.is_weak()
    if len(set(template.names)) == len(template.names) and not GLUED.search(template.english) and "\n" not in template.english
    if not template.english.startswith("Could not")
    and "Fix: " not in template.english
    and len(template.english) < MOST
    and template.english[-1:] not in ".:,( "
}
Circle = list[tuple[float, str]]


def circle(texts: Iterable[str]) -> Circle:
    """Texts, each at a place from 0 to 1 that follows from it alone."""
    return sorted((random.Random(text).random(), text) for text in texts)


ENGLISH = circle(TEMPLATES)
PLAIN = circle(
    text
    for text in KNOWN
    if "{" not in text and re.search(r"^[a-z].*[a-z]$", text) and text.count(" ") > 3 and not re.search("[;:] ", text)
)
BENIGN = ("/data/runs/checkpoint-5", "3", "1,234", "model.safetensors", "q_proj.weight", "0.25", '"a"')
HOSTILE = (
    "/data/my runs/第 3 次 (copy)/checkpoint-5", "/mnt/a; b/c", "/mnt/x, y and z", "失败；原因：未知，（见下）。", "{name} {{0}} %s 50 %",
    "2.5 GiB", "v1.0. beta", quoted('a "name"; with: quotes. And all'), "Bad magic in super-block", "RuntimeError: shape; expected 3",
)  # fmt: skip
"""Values that have marks and words in them, and no sentence of the catalogue behind a mark."""
OPERATIONS = ("export", "merge the adapter", "read the texts of {}", "keep the output of {}", "make the folders of stage {}")


class Said(NamedTuple):
    """A text, and all that may be shown of it."""

    english: str
    shown: frozenset[str]
    chinese: str


def drawn(world: random.Random, texts: Circle) -> str:
    """The text behind a place that is drawn: one text more or less changes only the draws that meet it."""
    return texts[bisect.bisect(texts, (world.random(), "")) % len(texts)][1]


def value(world: random.Random, *, hostile: bool, first: bool) -> str:
    """What stands in a place. What a clause begins with, or what stands before a colon, has no marks and is no sentence, unless it is
    quoted: nobody could read it otherwise.
    """
    if not hostile:
        return world.choice(BENIGN)
    if first:
        return world.choice((HOSTILE[0], quoted(HOSTILE[1]), quoted(f"x; {drawn(world, PLAIN)}: y"), "失败；原因（见下）。", *BENIGN))
    sentence = drawn(world, PLAIN)
    return world.choice((*HOSTILE, *BENIGN, quoted(f"x; {sentence}: {drawn(world, PLAIN)}"), f"/mnt/{sentence}/x"))


def clause(world: random.Random, *, hostile: bool, deep: bool = True) -> Said:
    """A sentence of the catalogue with values."""
    if world.random() < 0.2:
        text = drawn(world, PLAIN)
        return Said(text, frozenset({text, KNOWN[text]}), KNOWN[text])
    template = TEMPLATES[drawn(world, ENGLISH)]
    values: dict[str, Said] = {}
    for place, name in enumerate(template.names):
        if deep and name in template.sentences and not is_subject(template, place) and world.random() < 0.7:
            values[name] = clause(world, hostile=hostile, deep=False)
        else:
            text = value(world, hostile=hostile, first=first(template, place))
            values[name] = Said(text, frozenset({text}), text)
    english = filled(template, [values[name].english for name in template.names])
    shown = {english} | {translation(template, dict(zip(values, forms, strict=True)))
                         for forms in itertools.product(*(said.shown for said in values.values()))}  # fmt: skip
    return Said(english, frozenset(shown), translation(template, {name: said.chinese for name, said in values.items()}))


def is_subject(template: Template, place: int) -> bool:
    """Whether a clause begins with a value and goes on in words: a sentence there would be one with them."""
    return not place and not template.literals[0] and template.literals[1][:1] not in (":", ";", ",", ".")


def first(template: Template, place: int) -> bool:
    """Whether a value begins a clause, or stands before a colon."""
    begins = not place and not template.literals[0]
    return begins or template.names[place] in template.sentences or template.literals[place + 1].startswith((":", ";", ",", "."))


def filled(template: Template, values: Sequence[str]) -> str:
    return template.literals[0] + "".join(text + literal for text, literal in zip(values, template.literals[1:], strict=True))


def translation(template: Template, values: dict[str, str]) -> str:
    return "".join(literal + (values[name] if name else "") for literal, name in template.chinese)


def joined(parts: Sequence[Said], joint: str, chinese: str) -> Said:
    """The parts one after the other; each joint may be shown in either language."""
    forms: Iterable[str] = [""]
    for place, part in enumerate(parts):
        forms = [text + mark + form for text in forms for mark in ((joint, chinese) if place else ("",)) for form in part.shown]
    return Said(joint.join(part.english for part in parts), frozenset(forms), chinese.join(part.chinese for part in parts))


def bare(text: str) -> str:
    """Without blanks, which a text in two scripts has in other places; a colon after a number may be that of a time, and keeps its mark."""
    return re.sub(r"(?<=\d)：", ":", text.replace(" ", ""))


def text_of(world: random.Random, *, hostile: bool) -> Said:
    """One to three clauses, joined by a mark, with or without a name before them."""
    parts = [clause(world, hostile=hostile) for _ in range(world.choice((1, 2, 2, 3)))]
    said = joined(parts, *world.choice((("; ", "；"), ("; ", "；"), (". ", "。"))))
    if world.random() < 0.3:
        name = world.choice(("model.safetensors", '"a; b"', "onnx-int4", "limits.jobs"))
        said = joined([Said(name, frozenset({name}), name), said], ": ", "：")
    return said


def fault_of(world: random.Random, *, hostile: bool) -> Said:
    """The sentence of a fault whose cause is such a text."""
    cause, remedy = text_of(world, hostile=hostile), clause(world, hostile=hostile, deep=False)
    operation = world.choice(OPERATIONS)
    name = value(world, hostile=hostile, first=True)
    known = KNOWN.get(re.sub(r"\{\}", "{name}", operation), KNOWN.get(operation.replace("{}", "{setting}"), "导出"))
    path = world.choice((None, "/data/run 1 (a: b)/x.json", "/mnt/a; b"))
    fault = Fault(code=FaultCode.OS_ERROR, operation=operation.format(name), cause=cause.english, remedy=remedy.english, path=path)
    where = f"（{path}）" if path else ""
    head = f"无法{re.sub(r'{.*?}', lambda match: name, known)}{where}："
    heads = {head, f"无法 {operation.format(name)}{where}："}
    forms = {f"{begin}{why}。解决方法：{what}。" for begin in heads for why in cause.shown for what in remedy.shown}
    if remedy.english not in fault.sentence() or "…" in fault.sentence():
        return cause  # it is too long, and was cut
    return Said(fault.sentence(), frozenset(forms), f"{head}{cause.chinese}。解决方法：{remedy.chinese}。")


Make = Callable[..., Said]


def wrong_and_english(make: Make, *, hostile: bool) -> tuple[dict[str, str], int]:
    """What is shown that is none of the texts that may be, and how many texts are not wholly in Chinese."""
    wrong, english = {}, 0
    with use_language("zh_CN"):
        for seed in range(WORLDS):
            said = make(random.Random(seed), hostile=hostile)
            shown = translated_text(said.english)
            if bare(shown) not in set(map(bare, said.shown)):
                wrong[said.english] = shown
            english += bare(shown) != bare(said.chinese)
    return wrong, english


@pytest.mark.parametrize("make", [text_of, fault_of])
def test_joined_sentences_with_values_of_any_kind_are_never_scrambled(make: Make) -> None:
    wrong, english = wrong_and_english(make, hostile=True)
    assert len(wrong) < FEW, wrong
    assert english < WORLDS / 3


@pytest.mark.parametrize("make", [text_of, fault_of])
def test_joined_sentences_with_plain_values_are_wholly_in_chinese(make: Make) -> None:
    wrong, english = wrong_and_english(make, hostile=False)
    assert wrong == {}
    assert english < WORLDS / 12


@pytest.mark.parametrize(
    ("before", "said"), [("", ""), ("cluster.python: ", "cluster.python："), ("it is a file; ", f"{KNOWN['it is a file']}；")]
)
def test_every_template_is_read_as_itself_alone_behind_a_name_and_behind_a_sentence(before: str, said: str) -> None:
    """Two templates that make the same text, or of which one takes what stands before the other for its value, are said alike."""
    wrong = {}
    with use_language("zh_CN"):
        for template in TEMPLATES.values():
            values = [f"x{number}" for number in range(len(template.names))]
            text = before + filled(template, values)
            shown = translated_text(text)
            if bare(shown) != bare(said + translation(template, dict(zip(template.names, values, strict=True)))):
                wrong[text] = shown
    assert wrong == {}, "word them apart, or translate them alike"
