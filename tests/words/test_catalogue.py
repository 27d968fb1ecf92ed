"""Each sentence that people read has its translation, and the catalogue has nothing else."""

from __future__ import annotations

import functools
import gettext
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from daemon.contract.language.catalog import language_of, to_translate, translated, translated_plural, use_language
from tests.words.messages import COMPILED, FILE, Message, as_compiled, as_text, catalogue, extracted, placeholders, translations
from tests.words.written import SEVERAL_MEANINGS, terms

KNOWN = translations()
NO_WORDS = re.compile(r"checkpoint-\{[^}]*\}|\{[^}]*\}|`[^`]*`|\w+\.[\w.]+|\[[a-z/]+\]|\S*/\S*|[$A-Z]{2,}\S*")
"""Values, code, keys, files and words of our own that stay English."""


@functools.cache
def pairs() -> list[tuple[Message, str]]:
    """Return each sentence of the code with its translation."""
    return [(message, KNOWN.get(message.text, ("",))[0]) for message in extracted()]


def test_every_sentence_has_a_translation() -> None:
    assert [message.text for message, chinese in pairs() if not chinese.strip()] == [], "translate them in ckptd.po, then: make messages"


def test_the_catalogue_has_no_sentence_that_the_program_has_not() -> None:
    assert sorted(KNOWN.keys() - {message.text for message in extracted()}) == [], "run: make messages"


def test_the_files_are_those_that_make_messages_writes() -> None:
    value = catalogue(extracted(), KNOWN)
    assert FILE.read_bytes() == as_text(value), "run: make messages"
    assert COMPILED.read_bytes() == as_compiled(value), "run: make messages"
    assert b"fuzzy" not in FILE.read_bytes()


def test_the_compiled_file_is_read_by_gettext() -> None:
    with COMPILED.open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    assert [message.text for message, chinese in pairs() if compiled.gettext(message.text) != chinese and not message.plural] == []
    assert [message.text for message, chinese in pairs() if message.plural and compiled.ngettext(*message.id, 3) != chinese] == []


def test_a_translation_has_the_placeholders_of_its_sentence() -> None:
    wrong = [message.text for message, chinese in pairs() if placeholders(message.plural or message.text) != placeholders(chinese)]
    assert wrong == []


def test_a_translation_is_chinese_where_its_sentence_has_words() -> None:
    def has_words(text: str) -> bool:
        return len(re.findall(r"[a-z]{2,}", NO_WORDS.sub("", text))) > 1

    assert [message.text for message, chinese in pairs() if has_words(message.text) and not re.search(r"[\u4e00-\u9fff]", chinese)] == []


def test_terms_obey_the_glossary() -> None:
    wrong = []
    for message, chinese in pairs():
        english = NO_WORDS.sub("", message.text)
        for term, form, banned in terms():
            if any(word in chinese for word in banned):
                wrong.append((message.text, banned))
            if term not in SEVERAL_MEANINGS and re.search(rf"\b{term}s?\b", english) and form not in chinese:
                wrong.append((message.text, [form]))
    assert wrong == []


def test_no_two_sentences_differ_only_in_spaces_or_in_a_stop() -> None:
    forms: dict[str, list[str]] = {}
    for message in extracted():
        forms.setdefault(" ".join(message.text.split()).strip(" ."), []).append(message.text)
    assert [texts for texts in forms.values() if len(texts) > 1] == []


def test_no_sentence_has_a_placeholder_without_a_name() -> None:
    assert [message.text for message in extracted() if any(name.isdigit() or not name for name in placeholders(message.text))] == []


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "zh_SG"}, "zh_CN"),
        ({"LANG": "zh"}, "zh_CN"),
        ({"LANG": "zh_CN.GB18030"}, "zh_CN"),
        ({"LANG": "zh_TW.UTF-8"}, "en"),
        ({"LANG": "zh_HK.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:en"}, "zh_CN"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en:zh_CN"}, "en"),
        ({"LANGUAGE": "zh_TW:zh-Hans"}, "zh_CN"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "zh_CN", "LC_ALL": "C"}, "en"),
        ({"LANG": "C.UTF-8", "LANGUAGE": "zh_CN"}, "zh_CN"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh_CN"),
    ],
)
def test_the_language_is_that_of_the_environment(environment: Mapping[str, str], language: str) -> None:
    assert language_of(environment) == language


def test_a_sentence_is_shown_in_the_language_in_use() -> None:
    message, chinese = next((message, chinese) for message, chinese in pairs() if not message.plural)
    assert translated(message.text) == message.text == to_translate(message.text)
    with use_language("zh_CN"):
        assert translated(message.text) == chinese and translated("") == ""
        assert translated_plural("{count} sheep", "{count} sheep together", 1) == "{count} sheep", "no entry: as it is written"
    assert translated_plural("{count} sheep", "{count} sheep together", 2) == "{count} sheep together"


def test_in_english_nothing_is_imported_or_opened() -> None:
    program = (
        "import sys; from daemon.contract.language.catalog import _catalogue, translated; translated('x');"
        "print(_catalogue.cache_info().currsize)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "0\n"


def test_messages_are_compared_by_their_text() -> None:
    assert Message("a") < Message("b") and Message("a", "as").id == ("a", "as")
