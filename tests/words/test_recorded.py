"""Each sentence that is recorded in English has its translation, and is found again in what is left of it: the finished text."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.faults.fault import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language import reading, recorded
from daemon.contract.language.catalog import use_language
from daemon.contract.language.recorded import JOINED, fault_sentence, translated_text
from daemon.contract.language.templates import Template, matches_of, templates
from tests.words.messages import as_text, placeholders
from tests.words.recorded import COMPILED, FILE, catalogue_of, compiled, keys, translations
from tests.words.written import SEVERAL_MEANINGS, terms

KNOWN = translations()
TEMPLATES = [template for several in (*templates().by_word.values(), templates().others) for template in several if template.names]
HOSTILE = (
    "/data/my runs/第 3 次 (copy)/checkpoint-5",
    '"a name, with \\" quotes: and; all"',
    "{name} {{0}} %s 50 % %(x)d",
    "there is no such file or folder",
    "",
)
"""Values that a sentence may hold."""
_APART = re.compile(r"\{[^}]*\}|`[^`]*`|\[\w+\]|\b\w+(?:[.-]\w+)+|--[a-z-]+|transformers stage|: artifact is")
"""Keys, commands and names, which are no words of a sentence, and words that mean something else there."""


def _sentences() -> list[str]:
    """Those without values. The keys are looked for when a test needs them: to read the whole program takes seconds."""
    return [text for place, text in keys() if not place and "{" not in text]


def test_every_recorded_text_has_a_translation() -> None:
    assert [key for key in keys() if not KNOWN.get(key, "").strip()] == [], "translate them in recorded.po, then: make messages"


def test_the_catalogue_has_no_recorded_text_that_the_program_has_not() -> None:
    assert sorted(KNOWN.keys() - set(keys())) == [], "run: make messages"


def test_the_files_are_those_that_make_messages_writes() -> None:
    value = catalogue_of(KNOWN)
    assert FILE.read_bytes() == as_text(value), "run: make messages"
    assert COMPILED.read_bytes() == compiled(KNOWN), "run: make messages"


def test_a_translation_has_the_placeholders_of_its_template() -> None:
    """But for an English plural, which Chinese has not."""
    differing = ((text, placeholders(text) ^ placeholders(chinese)) for (_, text), chinese in KNOWN.items())
    assert {text: names for text, names in differing if not all(re.fullmatch(r"(?:s|choice)\d*", name) for name in names)} == {}


def test_commands_and_keys_of_a_sentence_are_in_its_translation() -> None:
    words = re.compile(r"`[^`]+`|\b(?:[a-z_]+\.[a-z_]{3,}|[A-Z]{2,}_[A-Z_]+)\b|--[a-z][a-z-]+")
    wrong = {
        text: lost
        for (_, text), chinese in KNOWN.items()
        if (lost := [word for word in words.findall(text) if "{" not in word and word not in chinese])
    }
    assert wrong == {}


def test_terms_obey_the_glossary() -> None:
    wrong = []
    for (_, text), chinese in KNOWN.items():
        english, said = _APART.sub("", text), _APART.sub("", chinese)
        for term, form, banned in terms():
            if any(word in said for word in banned):
                wrong.append((text, banned))
            if term not in SEVERAL_MEANINGS and re.search(rf"\b{term}s?\b", english) and form not in chinese:
                wrong.append((text, [form]))
    assert wrong == []


def _filled(template: Template, values: Sequence[str]) -> str:
    return template.literals[0] + "".join(value + literal for value, literal in zip(values, template.literals[1:], strict=True))


def _texts(template: Template, values: Sequence[str]) -> list[str]:
    """The values, those that no word parts as one: nobody could say where one ends."""
    texts = [""]
    for value, literal in zip(values, (*template.literals[1:-1], " "), strict=True):
        texts[-1] += value + ("" if literal.strip() else literal)
        texts += [""] if literal.strip() else []
    return texts


@pytest.mark.parametrize("first", range(len(HOSTILE)))
def test_a_finished_sentence_leads_back_to_its_template_with_its_values(first: int) -> None:
    """Where a value holds the words that stand between two, and where a heavier template makes the same text, nobody could tell."""
    wrong: dict[str, object] = {}
    others = []
    for template in TEMPLATES:
        values = list(itertools.islice(itertools.cycle(HOSTILE[first:] + HOSTILE[:first]), len(template.names)))
        text = _filled(template, values)
        match, cuts = next(matches_of(text), (None, []))
        if match is None or match.weight() < template.weight():
            wrong[text] = match
        elif match.english != template.english:
            others.append(text)
        elif any(literal and literal in value for value in values for literal in template.literals[1:-1]):
            continue
        elif _texts(template, values) not in [_texts(template, cut) for cut in cuts]:
            wrong[text] = cuts
    assert wrong == {}
    assert len(others) < len(TEMPLATES) / 50


def test_the_values_are_in_the_translation_as_they_are() -> None:
    lost = {}
    with use_language("zh_CN"):
        for template in (template for template in TEMPLATES if len(set(template.names)) == len(template.names)):
            blank = "_" if " " in template.literals[1:-1] else " "
            values = [f"/mnt/{number}{blank}x/第{number}次" for number in range(12)]
            text = _filled(template, values[: len(template.names)])
            said = translated_text(text)
            shown = [value for value, name in zip(values, template.names, strict=False) if not re.fullmatch(r"(?:s|choice)\d*", name)]
            if any(value not in said for value in shown):
                lost[text] = said
    assert lost == {}


def test_no_english_is_left_of_a_fault_whose_parts_are_known() -> None:
    """Every sentence without values once as a cause and once as a remedy, joined as a fault joins them."""
    left, sentences = {}, _sentences()
    operations = itertools.cycle(["merge the adapter", "read the configuration", "export"])
    with use_language("zh_CN"):
        for cause, remedy, operation in zip(sentences, reversed(sentences), operations, strict=False):
            if {cause[:1], remedy[:1], cause[-1:], remedy[-1:]} & set(" ,;:(.?…") or "\n" in cause + remedy:
                continue
            fault = Fault(code=FaultCode.OS_ERROR, operation=operation, cause=cause, remedy=remedy, path="/data/run 1 (a: b)/x.json")
            said = translated_text(fault.sentence())
            shortened = "…" in fault.sentence() or "***" in fault.sentence()
            if not shortened and not said.endswith(f"：{KNOWN['', cause]}。解决方法：{KNOWN['', remedy]}。"):
                left[fault.sentence()] = said
    assert left == {}


@pytest.mark.parametrize(
    ("english", "chinese"),
    [("its parts can't be read: it is not a complete archive of torch.save (File is not a zip file); latest is not there yet",
      "无法读取它的分片：它不是 torch.save 的完整归档（File is not a zip file）；latest还不在"),
     ("'03:00' is no cron expression of five fields (Wrong number of fields; got 1, expected 5); try '* 20-23,0-6 * * *'",
      "'03:00' 不是有五个字段的 cron 表达式（字段数不对：给出了 1 个，应为 5 个）；试试 '* 20-23,0-6 * * *'"),
     ('"a; b": it is a file, not a directory', '"a; b"：它是文件，而不是目录'),
     ("rejected", "被拒绝"), ("toolchain missing", "缺少工具链"),
     ("exporting with dynamo-eager, opset 18", "正在用 dynamo-eager 导出，opset 18"),
     ("--set (command line) for limits.jobs: must be a whole number; for example 2",
      "--set（命令行）设置的 limits.jobs：必须是整数；例如 2"),
     ("limits.priority: must be 'idle', 'low' or 'normal'", "limits.priority：必须是 'idle'、'low' 或 'normal'")],
)  # fmt: skip
def test_a_sentence_that_is_shown_is_in_chinese_as_a_whole(english: str, chinese: str) -> None:
    with use_language("zh_CN"):
        assert translated_text(english) == chinese


def test_a_fault_with_a_list_is_translated_line_by_line() -> None:
    fault = Fault(
        code=FaultCode.CONFIG_INVALID, operation="use the configuration", path="/etc/ckptd.toml",
        cause="2 things are wrong:\n  limits.job: is not a known key; did you mean 'jobs'?\n  limits.jobs: must be at least 1 (it is -1)\n",
        remedy="change those keys; docs/configuration.md describes each",
    )  # fmt: skip
    with use_language("zh_CN"):
        assert translated_text(fault.sentence()) == fault_sentence(fault.operation, fault.path or "", fault.cause, fault.remedy)
        assert translated_text(fault.sentence()) == (
            "无法使用这份配置（/etc/ckptd.toml）：2 处错误：\n  limits.job：不是已知的配置项；是不是 'jobs'？\n"
            "  limits.jobs：必须至少为 1（它是 -1）\n解决方法：修改这些配置项；docs/configuration.md 说明了每一个。"
        )


def test_a_remedy_of_which_a_long_sentence_has_the_first_alternative_is_known() -> None:
    whole = next(text for text in _sentences() if text.count("; ") == 1 and "`" not in text and KNOWN["", text].count("；") == 1)
    with use_language("zh_CN"):
        assert translated_text(whole.partition("; ")[0]) == KNOWN["", whole].partition("；")[0]


def test_what_no_template_makes_stays_as_it_is() -> None:
    with use_language("zh_CN"):
        for text in ("CUDA error: device-side assert triggered", "第 3 次", "", "\n\n", "made", "/a/b c/d", "cublas error 5"):
            assert translated_text(text) == text


@given(st.text(alphabet=st.sampled_from(list("ab;:,. ()\"'`{}%\\\n第。")), max_size=300))
def test_any_text_is_translated_to_some_text(text: str) -> None:
    with use_language("zh_CN"):
        assert isinstance(translated_text(text), str)
    assert translated_text(text) == text, "in English nothing changes"


@given(
    st.lists(st.deferred(lambda: st.sampled_from([text for _, text in keys()])), max_size=60),
    st.sampled_from(["; ", ": ", ", ", " ", ". ", " ("]),
)
def test_the_work_for_a_text_is_bounded(texts: list[str], joint: str) -> None:
    work = reading.Work()
    work.translation(joint.join(texts)[: recorded.MOST_READ])
    assert work.parts <= reading.MOST_PARTS + 10


def test_in_english_the_recorded_catalogue_is_not_read() -> None:
    program = (
        "from daemon.contract.language.recorded import translated_text; from daemon.contract.language.templates import templates;"
        "translated_text('it is a file'); print(templates.cache_info().currsize)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert answer.stdout == "0\n"


def test_joined_sentences_are_those_of_a_fault() -> None:
    parts = {"operation": "merge it", "cause": "it is so", "remedy": "change that"}
    assert Fault(code=FaultCode.OS_ERROR, **parts).sentence() == JOINED[0].format(**parts)
    assert Fault(code=FaultCode.OS_ERROR, path="/x", **parts).sentence() == JOINED[1].format(path="/x", **parts)
