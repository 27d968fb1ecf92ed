"""report.html is one safe, self-contained page that says first what matters most."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from daemon.contract import units
from daemon.contract.jobs.messages import JobFacts, Verdict
from handlers.report.advice import headline
from handlers.report.content.places import local_paths, without_paths
from handlers.report.pages import charts, html
from tests.report import facts

CASES = [facts.succeeded, facts.rejected_int8, facts.failed_int8, facts.failed_merge, facts.unverified, facts.withheld]
VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "</title></style><script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)> {{ 7 * 7 }} \u202e"


class Page(HTMLParser):
    """The elements, attributes and text of a page; raises when tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.shown: list[str] = []
        """Those outside what is folded."""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
            inside = self.open[self.open.index("details") + 1 :] if "details" in self.open else ["summary"]
            if inside[:1] == ["summary"] and "title" not in self.open:
                self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def first_screen(self) -> str:
        return " ".join(" ".join(self.shown).split())


def page_of(job: JobFacts, folder: Path) -> str:
    return html.render(facts.report_of(job, folder))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_page_is_safe_whole_for_everybody_and_says_first_what_matters_most(case: Any, tmp_path: Path) -> None:  # R4.5
    report = facts.report_of(case(), tmp_path)
    text = html.render(report)
    page = Page(text)
    assert_alone(page, text)
    assert_accessible(page)
    title, words = headline.title_line(report), page.text
    assert words.index(title) < words.index("Artifacts")
    for failure in report.failures:
        sentence = without_paths(failure.sentence, local_paths(report))
        assert words.index(title) < words.index(sentence) < words.index(failure.remedy) < words.index("Agreement")
    assert ("What failed, and what to do" in words) == bool(report.failures)


def assert_alone(page: Page, text: str) -> None:
    """It refers to nothing outside itself, and runs nothing."""
    names = {name for name, _ in page.elements}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form", "audio", "video"})
    for name, attributes in page.elements:
        if name == "a":  # within the page, or to what lies beside it
            assert re.match(r"(#note-\d+|\.\./)", attributes.pop("href") or "")
        assert not {"src", "href", "xlink:href", "action", "srcset", "background"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|javascript:|https?://", text)
    assert "default-src 'none'" in text


def assert_accessible(page: Page) -> None:
    """People with a screen reader or a keyboard get all of it."""
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(ids)
    assert all("scope" in attributes for name, attributes in page.elements if name == "th")
    drawn = [attributes for name, attributes in page.elements if name == "svg" and attributes.get("role") == "img"]
    assert drawn and all(attributes["aria-labelledby"] for attributes in drawn)
    scrolling = [attributes for _, attributes in page.elements if attributes.get("class") == "scroll"]
    assert all(attributes.get("tabindex") == "0" and attributes.get("aria-label") for attributes in scrolling)
    assert dict(page.elements)["html"]["lang"] == "en"


def test_figures_of_a_twin_and_of_rounded_weights_are_explained_where_they_are(tmp_path: Path) -> None:
    figures: dict[str, Any] = {"twin_error": 1e-6, "rounding_error": 0.01, "rounding_slope": 1.0, "rounded": {"kl": 1e-6}}
    told = Page(page_of(facts.made_all(facts.check("pytorch"), facts.check("onnx-int8", **figures)), tmp_path)).text
    assert told.count("is from PyTorch with the graph's own weights") == 1
    assert told.count("beside the live model with its weights rounded") == 1


@pytest.mark.parametrize(
    ("task", "says"), [("image-text-to-text", True), ("audio-classification", True), ("automatic-speech-recognition", True),
                       ("text-generation", False), (None, False)]
)  # fmt: skip
def test_of_models_that_read_pictures_or_sounds_it_says_what_these_were(task: str | None, says: bool, tmp_path: Path) -> None:
    report = facts.report_of(facts.succeeded(), tmp_path).model_copy(update={"task": task})
    assert ("of the checks are made up: none of a user's own was tried, and no video" in html.render(report)) is says


def test_what_to_do_does_not_end_with_the_same_command_that_failed(tmp_path: Path) -> None:
    told = Page(page_of(facts.rejected_int8(), tmp_path)).text
    assert "run it once more, with what you changed" in told


def test_fallbacks_gaps_and_warnings_stand_under_the_table_that_they_are_about(tmp_path: Path) -> None:
    page = page_of(facts.succeeded(), tmp_path / "one")
    text = Page(page).first_screen
    table, samples = text.index("Largest error"), text.index("What the models write")
    assert table < text.index("onnx : opset 18 instead of opset 23: the runtime has no kernel for Attention 23") < samples
    assert table < text.index("onnx-int8 : 1 MatMul has no constant weight") < samples
    (number,) = re.findall(r'id="note-(\d+)"><b>onnx-int8</b>: 1 MatMul', page)
    assert f'scope="row">onnx-int8<sup><a href="#note-{number}"' in page, "its row has the mark"
    text = Page(page_of(facts.unverified(), tmp_path / "two")).first_screen
    assert "pytorch, onnx, onnx-int8 : not verified: everything: reference failed, see above" in text


def test_what_the_texts_lack_is_said_at_the_columns_that_it_is_about(tmp_path: Path) -> None:
    job = facts.succeeded()
    few = "The texts have 53 tokens together: too few for a verdict"
    stages = [
        stage.model_copy(update={"result": stage.result.model_copy(update={"warnings": (few,)})})
        if stage.name == "reference" and stage.result
        else stage
        for stage in job.stages
    ]
    page = page_of(job.model_copy(update={"stages": tuple(stages)}), tmp_path)
    (number,) = re.findall(rf'id="note-(\d+)"><b>agreement, KL, error</b>: {few}', page)
    mark = rf'<sup><a href="#note-{number}" aria-label="note {number}">{number}</a></sup>'
    assert len(re.findall(rf"(?:Agreement|KL, nats/token|Largest error, σ){mark}</th>", page)) == 3
    assert page.index(mark) < page.index('id="artifacts"'), "beside what is to be deployed too"


@pytest.mark.parametrize("case", [facts.succeeded, facts.rejected_int8], ids=lambda case: case.__name__)
def test_the_first_screen_has_what_decides_and_few_words(case: Any, tmp_path: Path) -> None:
    page = Page(page_of(case(), tmp_path))
    text = page.first_screen
    places = [text.index(words) for words in ("artifacts passed", "What to deploy", "Install", "Agreement", "What the models write")]
    assert places == sorted(places)
    assert len(text.split()) <= 480 < 1000 < len(page.text.split())
    headings = [int(name[1]) for name, _ in page.elements if name in ("h1", "h2", "h3", "h4")]
    assert headings[0] == 1 and all(after <= before + 1 for before, after in itertools.pairwise(headings))


def test_the_sample_in_which_an_artifact_differs_is_the_one_that_is_seen_first(tmp_path: Path) -> None:
    text = Page(page_of(facts.succeeded(), tmp_path)).first_screen
    assert "the lamp was lit" in text and "def add(a, b):" not in text.split("What the models write")[1]


def test_pages_name_no_folder_of_this_machine_and_the_report_for_programs_does(tmp_path: Path) -> None:
    job = facts.rejected_int8().model_copy(update={"base": "/home/ann/some models/base", "access": "because /home/ann/runs/x is 0600"})
    job = job.model_copy(update={"checkpoint": facts.checkpoint(base_name="/home/ann/some models/base")})
    report = facts.report_of(job, tmp_path)
    page = html.render(report)
    assert report.base.folder == "/home/ann/some models/base" and report.access == "because /home/ann/runs/x is 0600"
    assert not re.search(r"/home|/runs/|/var/log|some models", page)
    assert "<dt>Base</dt><dd>base</dd>" in page and "because …/x is 0600" in page
    assert "ckptd show 7f3a9c21" in page


def test_hostile_texts_are_shown_as_text_and_nothing_more(tmp_path: Path) -> None:
    quiet = Page(page_of(facts.rejected_int8(), tmp_path / "quiet"))
    bad = facts.rejected_int8()
    check = facts.check(
        "onnx-int8", Verdict.FAILED, sample={"prompt": HOSTILE, "reference": HOSTILE, "text": HOSTILE[::-1]}, **{HOSTILE: HOSTILE}
    )
    check = check.model_copy(update={"reasons": (HOSTILE,), "remedy": HOSTILE})
    metadata = {HOSTILE: HOSTILE, "loss_history": [[HOSTILE, 1], [1, 2]]}
    job = facts.made_all(
        facts.check("pytorch"), facts.check("onnx"), check, export_id=HOSTILE, warnings=(HOSTILE,),
        checkpoint=facts.checkpoint(run=HOSTILE, path=HOSTILE, base_name=HOSTILE, metadata=metadata),
    )  # fmt: skip
    loud = Page(page_of(job, tmp_path / "loud"))
    assert {name for name, _ in loud.elements} <= {name for name, _ in quiet.elements}
    assert not [name for _, attributes in loud.elements for name in attributes if name.startswith("on") or name == "src"]
    assert "<script>alert(1)</script>" in loud.text and "{{ 7 * 7 }}" in loud.text and "\\u202e" in loud.text
    assert "\u202e" not in loud.text and bad.export_id in quiet.text


def test_figures_of_an_unexpected_kind_do_not_break_the_page(tmp_path: Path) -> None:
    odd = facts.check(
        "onnx", agreement="high", kl=None, error_max=[1], tokens_per_second={}, speed_over_pytorch=True, sample="text", peak_rss_bytes="x"
    )
    job = facts.made_all(facts.check("pytorch", sample={"text": 1}), odd, checkpoint=facts.checkpoint(metadata={"loss_history": "none"}))
    Page(page_of(job, tmp_path))


def test_figures_beyond_their_limits_are_marked(tmp_path: Path) -> None:
    assert len(re.findall('class="out"', page_of(facts.rejected_int8(), tmp_path / "one"))) == 3
    assert 'class="out"' not in page_of(facts.succeeded(), tmp_path / "two")


# R4.4
def test_the_effect_of_the_adapter_itself_gives_the_figures_a_scale(tmp_path: Path) -> None:
    scale = "the base without the adapter agrees at 57.9 % of the positions, KL 0.0837"
    assert scale in Page(page_of(facts.succeeded(), tmp_path / "one")).text
    assert "without the adapter" not in Page(page_of(facts.unverified(), tmp_path / "two")).text


def test_table_and_chart_say_the_same_speed_over_pytorch(tmp_path: Path) -> None:
    job = facts.made_all(facts.check("onnx", tokens_per_second=20.0, pytorch_tokens_per_second=5.0, speed_over_pytorch=3.9))
    report = facts.report_of(job, tmp_path)
    assert charts.speed_bars(report)[0].text == "20 · 3.9 × PyTorch"
    assert "4 × PyTorch" not in html.render(report)


def test_words_that_are_not_the_live_models_are_marked(tmp_path: Path) -> None:
    text = page_of(facts.rejected_int8(), tmp_path)
    assert "    return <mark>(…)</mark>b<mark>\n\n\n</mark>" in text


def test_the_charts_show_the_figures_to_scale(tmp_path: Path) -> None:
    report = facts.report_of(facts.rejected_int8(), tmp_path)
    base, pytorch, onnx, int8 = charts.size_bars(report)
    assert (base.kind, onnx.width, int8.kind) == ("reference", charts.ROOM, "failed")
    assert int8.width == pytest.approx(charts.ROOM * 615_423_380 / 2_395_423_380, abs=0.01) and pytorch.width > base.width
    speeds = charts.speed_bars(report)
    assert speeds[2].width == charts.ROOM and speeds[2].beside == pytest.approx(charts.ROOM / 4.8, abs=0.01)
    rows = {row.label: row for row in charts.limit_rows(report)}
    limit = charts.limit_position(1)
    assert all(mark.over and mark.position > limit for mark in rows["onnx-int8"].marks)
    assert all(not mark.over and mark.position < limit for row in ("pytorch", "onnx") for mark in rows[row].marks)
    timeline = charts.timeline(report)
    assert timeline is not None
    spans = {row.label: row.spans for row in timeline.rows}
    assert [span.outcome for span in spans["onnx"]] == ["retryable", "succeeded"]
    assert spans["reference"][0].start == pytest.approx(100 * 69 / 96, abs=0.01)
    assert all(span.start + span.width <= 100.01 for row in timeline.rows for span in row.spans)
    curve = charts.loss_curve(report)
    assert curve is not None and len(curve.points.split()) == 60


def test_charts_without_figures_are_left_out(tmp_path: Path) -> None:
    text = page_of(facts.failed_merge(), tmp_path)
    assert "tokens decoded per second" not in text and "Distance from the limits" not in text
    assert "Timeline" in text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.size(999), "999 B"), (units.size(999_600), "976 KiB"), (units.size(1_200_000), "1.14 MiB"),
        (units.size(615_423_380), "587 MiB"), (units.size(None), "–"),
        (units.duration(0.0123), "12.3 ms"), (units.duration(1.234e-6), "1.23 µs"),
        (units.duration(3.4), "3.4 s"), (units.duration(125), "2 min 5 s"),
        (units.duration(3780), "1 h 3 min"), (units.duration(120), "2 min"), (units.duration(7200), "2 h"),
        (units.duration(172_800), "2 d"), (units.duration(190_900), "2 d 5 h"), (units.running(3.9), "3 s"), (units.running(0.4), "0 s"),
        (units.signed(1.5), "+1.5"), (units.signed(-0.25, units.percent), "-25 %"), (units.compared(1.034), "1.03 ×"),
        (units.sigma(0.01307), "0.0131 σ"), (units.nats(None), "–"),
        (units.number(1.2e-5), "1.2e-5"), (units.number(0.0312), "0.0312"), (units.number(596_049_920), "596,049,920"),
        (units.number(0.0), "0"), (units.percent(0.9999), "99.9 %"), (units.percent(1.0), "100 %"), (units.percent("x"), "–"),
        (units.times(0.52), "0.52 ×"), (units.times(12.3), "12 ×"), (units.times(5.0), "5.0 ×"),
        (units.times(9.96), "10 ×"), (units.moment("2026-11-20T11:00:00+01:00"), "2026-11-20 10:00:00 UTC"),
    ],
)  # fmt: skip
def test_figures_are_shown_in_units_that_people_read(shown: str, text: str) -> None:
    assert shown == text


def test_every_row_of_the_timeline_has_the_same_ticks(tmp_path: Path) -> None:
    text = page_of(facts.succeeded(), tmp_path)
    figure = text[text.index('id="timeline-caption"') :].split("</figure>")[0]
    rows = figure.split('class="track"')[1:]
    ticks = [re.findall(r'class="tick" x1="([0-9.]+)%"', row) for row in rows]
    assert len(rows) > 2 and ticks == [["25.0", "50.0", "75.0"]] * len(rows)
