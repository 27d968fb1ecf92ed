"""report.html and the page of a measurement in Chinese: every sentence of ours, and nothing of what programs read."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2 import nodes

from daemon.config.settings import ReportSettings
from daemon.contract.advice import merits
from daemon.contract.formats.catalog import Catalog, catalog
from daemon.contract.formats.targets import TARGETS, lacking
from daemon.contract.jobs.messages import JobFacts
from daemon.contract.jobs.points import RunFigures
from daemon.contract.language.catalog import use_language
from daemon.contract.language.recorded import translated_text
from handlers.report import comparison
from handlers.report.advice import ranking
from handlers.report.content.places import KEPT
from handlers.report.pages import bench_page, html
from handlers.report.pages.caveats import LIKENESS
from tests.bench.made import BENCH
from tests.report import facts
from tests.report.test_page import CASES, page_of
from tests.report.test_so_far import measured
from tests.report.test_so_far import told as point_for_others
from tests.report.test_stage import run_stage
from tests.verbs import run_verb
from tests.words.messages import ROOT

REPORT = ROOT / "handlers" / "report"
ENGLISH = {"readme.py", "usage.py", "usage_media.py", "schema.py", "formats_page.py", "model.py"}
"""What they write is English in every language: cards, which go to hubs with the model, and documents."""
TEMPLATES = sorted((REPORT / "pages").glob("*.html"))
SOURCES = sorted(
    [path for path in REPORT.rglob("*.py") if path.name not in ENGLISH] + list((ROOT / "daemon/contract/advice").glob("*.py"))
)  # fmt: skip
MARKS = ("translated", "to_translate", "translated_plural")
SENTENCE = re.compile(r"[A-Za-z][a-z']+(?:[ ,;:]+[A-Za-z][a-z']*){3,}")
"""Four English words."""
COMPARED = {"at its targets", "over its base", "it could not be checked: "}
"""What is compared with, and not shown."""
COLUMNS = {LIKENESS, *comparison.COLUMNS}
NAMES = {"ckptd", "SHA-256", "PyTorch"}


class Texts(HTMLParser):
    """The texts of a page, and those that are read out: without code, and without what models read and write."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.texts += [value for name, value in attrs if name in ("aria-label", "data-label", "title") and value]

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "pre", "code"} & set(self.open):
            self.texts.append(data)


def recorded(value: Any) -> Iterator[str]:
    """The texts of facts: what was recorded, and what models read and write."""
    if isinstance(value, str):
        yield " ".join(value.split())
    elif isinstance(value, dict):
        for item in value.values():
            yield from recorded(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from recorded(item)


def of_run(folder: Path) -> JobFacts:
    first = facts.report_of(measured(8.1, None, step=30), folder)
    return measured(8.4, RunFigures(points=(point_for_others(first),), trainers_best=60))


@pytest.mark.parametrize("case", [*CASES, of_run], ids=lambda case: case.__name__)
def test_a_chinese_page_has_no_english_sentence_but_what_was_recorded_by_others(case: Any, tmp_path: Path) -> None:
    job = case(tmp_path) if case is of_run else case()
    with use_language("zh_CN"):
        page = page_of(job, tmp_path)
    known = " ".join(recorded(job.model_dump(mode="json")))
    sentences = [match[0] for text in Texts(page).texts if text[:1] != "[" for match in SENTENCE.finditer(" ".join(text.split()))]
    assert [text for text in sentences if text not in known] == []
    assert '<html lang="zh-CN">' in page and "。." not in page and "。。" not in page
    assert html.render(facts.report_of(job, tmp_path)).startswith("\n") == page.startswith("\n")


def test_the_page_of_a_measurement_has_no_english_sentence() -> None:
    for kind in ("causal", "encoder", "seq2seq"):
        with use_language("zh_CN"):
            page = bench_page.render(BENCH.model_copy(update={"kind": kind, "notes": (), "cut": (), "no_pytorch": None}))
        texts = [text for text in Texts(page).texts if SENTENCE.search(text)]
        known = " ".join(recorded(BENCH.model_dump(mode="json")))
        sentences = [match[0] for text in texts for match in SENTENCE.finditer(text)]
        assert [text for text in sentences if text not in known] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_words_outside_of_the_catalogue(path: Path) -> None:
    tree = jinja2.Environment(extensions=["jinja2.ext.do"]).parse(path.read_text("utf-8"))
    marked = {
        id(node) for call in tree.find_all(nodes.Call) if getattr(call.node, "name", "") in MARKS for node in call.find_all(nodes.Const)
    }
    whole = "".join(
        node.data if isinstance(node, nodes.TemplateData) else "\0" for node in tree.find_all((nodes.TemplateData, nodes.Const))
    )
    text = re.sub(r'<style>.*?</style>|<pre class="copy">.*?</pre>|<[^>]*>', " ", whole, flags=re.DOTALL)
    assert set(re.findall(r"[A-Za-z]{2,}[\w-]*", text)) - NAMES == set()
    assert not re.findall(r'(?:aria-label|data-label|title)="[^"\0]*[A-Za-z]', whole)
    constants = [node.value for node in tree.find_all(nodes.Const) if id(node) not in marked and isinstance(node.value, str)]
    assert [value for value in constants if re.search(r"[a-z] [a-z]", value) and "<" not in value and not is_name(value)] == []


def is_name(value: str) -> bool:
    """Classes of CSS, and names of columns, which the page compares with."""
    return bool(re.fullmatch(r"(?:bar|dot|span|line)[a-z ]*", value)) or value in COLUMNS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_page_has_no_sentence_outside_of_the_catalogue(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            apart.add(id(node.value))
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and called(node) in (*MARKS, "progress", "Permanent", "compile")):
            apart.update(id(inner) for inner in ast.walk(node))
    texts = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart
    ]
    prose = [text for text in texts if len(re.findall(r"[A-Za-z]{2,}", text)) > 1 and " " in text.strip()]
    assert [text for text in prose if text not in COMPARED] == []


def called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def test_the_language_comes_with_the_job_and_programs_read_english_in_every_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGUAGE", "zh_CN")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    _, english = run_stage(facts.succeeded(), tmp_path / "en")
    result, chinese = run_stage(facts.succeeded(), tmp_path / "zh", language="zh_CN")
    assert '<html lang="en">' in (english / "report.html").read_text("utf-8")
    assert '<html lang="zh-CN">' in (chinese / "report.html").read_text("utf-8")
    assert result.figures["verdict"].startswith("Succeeded: all 3 artifacts passed validation")
    for name in ("report.json", "README.md", "onnx/README.md"):
        texts = [
            re.sub(r"2\d{3}-\d\d-\d\d[T ][\d:]+|\"wall_seconds.*", "", (folder / name).read_text("utf-8")) for folder in (english, chinese)
        ]
        assert texts[0] == texts[1] and not re.search(r"[\u4e00-\u9fff]", texts[0])


def texts_of_models(value: Any, *, inside: bool = False) -> Iterator[str]:
    """What models read and write, of all that a report holds."""
    if isinstance(value, str) and inside:
        yield " ".join(value.split())
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from texts_of_models(item, inside=inside or name in KEPT | {"prompts"})
    elif isinstance(value, list):
        for item in value:
            yield from texts_of_models(item, inside=inside)


@pytest.mark.slow
def test_the_page_of_a_real_export_has_no_english_sentence(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        f'[base]\nsearch = ["{pico_base.parent}"]\n[output]\ndirectory = "exports"\n[state]\ndirectory = "state"\n[validate]\nsamples = 2\n'
    )
    environment = {**os.environ, "LANGUAGE": "zh_CN", "LC_ALL": "zh_CN.UTF-8"}
    words = ["export", str(pico_checkpoint), "--config", str(tmp_path / "c.toml")]
    done = run_verb(words, tmp_path, environment, timeout=280)
    (page,) = (path for path in (tmp_path / "exports").glob("*/*/report.html") if not path.parent.is_symlink())
    assert done.returncode in (0, 3), done.stderr
    report = json.loads((page.parent / "report.json").read_text("utf-8"))
    known = " ".join(texts_of_models(report))
    texts = [" ".join(text.split()) for text in Texts(page.read_text("utf-8")).texts]
    sentences = [match[0] for text in texts if text[:1] != "[" for match in SENTENCE.finditer(text)]
    assert [text for text in sentences if text not in known] == []
    assert re.search(r"[\u4e00-\u9fff]", report["verdict"] + (page.parent / "README.md").read_text("utf-8")) is None


def test_auto_is_the_locale_of_whoever_starts_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGUAGE", "zh_CN")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert ReportSettings().spoken == "zh_CN" and ReportSettings(language="en").spoken == "en"
    monkeypatch.setenv("LC_ALL", "C")
    assert ReportSettings().spoken == "en" and ReportSettings(language="zh_CN").spoken == "zh_CN"


def test_what_formats_and_targets_say_of_themselves_is_translated() -> None:
    said = [variant.elsewhere for variant in catalog().variants.values() if variant.elsewhere]
    said += lacking(TARGETS, Catalog((), ())).values()
    with use_language("zh_CN"):
        assert [text for text in said if SENTENCE.search(translated_text(text))] == []


def test_what_another_report_recommends_is_translated_from_its_english(tmp_path: Path) -> None:
    report = facts.report_of(facts.succeeded(), tmp_path)
    some = report.artifacts[-1]
    ranges = [{**some.figures, "speed_over_pytorch": 5.3, "speed_over_pytorch_range": ends} for ends in ((4.0, 6.0), (2.3, 17.0))]
    turns = [some.model_copy(update={"figures": figures}) for figures in ranges]
    for artifact in (*report.artifacts, *turns):
        stored = merits.recommended(artifact.variant, ranking.merits(artifact))
        with use_language("zh_CN"):
            assert merits.in_words(stored) == merits.recommended(artifact.variant, ranking.merits(artifact)) != stored
    with use_language("zh_CN"):
        assert merits.in_words("onnx: what nobody knows") == "onnx：what nobody knows"
        assert merits.in_words("nothing") == "nothing"
