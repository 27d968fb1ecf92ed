"""Each sentence that is recorded in English has its translation, and is found again in what is left of it: the finished text."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.faults.fault import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language import recorded
from daemon.contract.language.catalog import use_language
from daemon.contract.language.recorded import JOINED, template_of, translated_text
from tests.words.messages import as_compiled, as_text, placeholders
from tests.words.recorded import COMPILED, FILE, catalogue_of, keys, translations
from tests.words.written import SEVERAL_MEANINGS, terms

KEYS = keys()
KNOWN = translations()
TEMPLATES = [text for place, text in KEYS if not place and placeholders(text) and text not in JOINED]
SENTENCES = [text for place, text in KEYS if not place and not placeholders(text)]
HOSTILE = (
    "/data/my runs/第 3 次 (copy)/checkpoint-5",
    '"a name, with \\" quotes: and; all"',
    "{name} {{0}} %s 50 % %(x)d",
    "there is no such file or folder",
    "",
)
"""Values that a sentence may hold."""
_PLAIN = re.compile(r"\{[^}]*\}|`[^`]*`")


def test_every_recorded_text_has_a_translation() -> None:
    assert [key for key in KEYS if not KNOWN.get(key, "").strip()] == [], "translate them in recorded.po, then: make messages"


def test_the_catalogue_has_no_recorded_text_that_the_program_has_not() -> None:
    assert sorted(KNOWN.keys() - set(KEYS)) == [], "run: make messages"


def test_the_files_are_those_that_make_messages_writes() -> None:
    value = catalogue_of(KNOWN)
    assert FILE.read_bytes() == as_text(value), "run: make messages"
    assert COMPILED.read_bytes() == as_compiled(value), "run: make messages"


def test_a_translation_has_the_placeholders_of_its_template() -> None:
    """But for an English plural, which Chinese has not."""
    wrong = {
        text: lost
        for place, text in KEYS
        for lost in [{name for name in placeholders(text) ^ placeholders(KNOWN[place, text]) if not re.fullmatch(r"(?:s|choice)\d*", name)}]
        if lost
    }
    assert wrong == {}


def test_terms_obey_the_glossary() -> None:
    wrong = []
    for (_, text), chinese in KNOWN.items():
        english = _PLAIN.sub("", text)
        for term, form, banned in terms():
            if any(word in _PLAIN.sub("", chinese) for word in banned):
                wrong.append((text, banned))
            if term not in SEVERAL_MEANINGS and re.search(rf"\b{term}s?\b", english) and form not in chinese:
                wrong.append((text, [form]))
    assert wrong == []


def _filled(template: str, values: list[str]) -> str:
    names = iter(values)
    return "".join(
        literal + (next(names) if name is not None else "") for literal, name, _, _ in recorded.string.Formatter().parse(template)
    )


@pytest.mark.parametrize("first", range(len(HOSTILE)))
def test_a_finished_sentence_leads_back_to_its_template_with_its_values(first: int) -> None:
    lost = {}
    for template in TEMPLATES:
        count = sum(name is not None for _, name, _, _ in recorded.string.Formatter().parse(template))
        values = list(itertools.islice(itertools.cycle(HOSTILE[first:] + HOSTILE[:first]), count))
        text = _filled(template, values)
        match = template_of(text)
        if match is None or match[0] != template or list(match[1]) != values:
            lost[text] = (template, match)
    assert lost == {}
