"""The pages as a browser without scripts gets them: whole, in the reader's language, and with nothing in them but what is ours."""

from __future__ import annotations

import html
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import pytest

from daemon.contract.jobs.messages import CheckpointRef
from daemon.page import peers
from daemon.page.answers import wanted_language
from tests.page.conftest import wait_until
from tests.page.screens.conftest import HOSTILE, STEPS, Pages
from tests.page.screens.serving import served
from tests.upgrades.frozen import STATES, thaw
from tests.words.messages import extracted

KINDS = ("/", "/jobs", "/runs", "/run?name=done", f"/run?name={quote(HOSTILE)}", "/jobs/done-16-aa", "/jobs/hostile-4-bb",
         "/jobs/hostile-4-bb/log/merge/1", "/nothing")  # fmt: skip


def crawled(pages: Pages, language: str = "en") -> dict[str, int]:
    """Every address that a link of the pages leads to, with its answer; redirects are followed."""
    seen: dict[str, int] = {}
    open_ = ["/"]
    while open_:
        path = open_.pop()
        if path in seen:
            continue
        page = pages.get(path, language)
        seen[path] = page.status
        if page.status in (301, 302, 303, 307):
            open_.append(urljoin(path, page.headers["location"]))
        elif page.headers["content-type"].startswith("text/html"):
            links = [*page.tree.xpath("//@href"), *page.tree.xpath("//@src")]
            assert not [link for link in links if urlsplit(link).netloc], f"{path} asks another host"
            open_ += [urljoin(path, link).partition("#")[0] for link in links]
    return seen


def test_every_link_of_every_page_leads_somewhere(pages: Pages) -> None:
    seen = crawled(pages)
    assert {path: status for path, status in seen.items() if status not in (200, 303)} == {}
    for needed in ("/jobs/done-16-aa/trace.json", "/jobs/hostile-4-bb/log/merge/1", "/run?name=done", "/static/page.css"):
        assert any(path.startswith(needed) for path in seen), needed
    assert len([path for path in seen if path.endswith("/report.html")]) >= len(STEPS) + 2, "reports link to each other"


@pytest.mark.parametrize("path", KINDS)
def test_nothing_of_a_page_is_made_of_what_others_wrote(path: str, pages: Pages) -> None:
    page = pages.get(path)
    tree = page.tree
    assert [script.get("src", "").partition("?")[0] for script in tree.xpath("//script")] == ["/static/page.js"]
    assert not tree.xpath("//script[normalize-space()]") and not tree.xpath("//style") and not tree.xpath("//@style")
    assert not tree.xpath("//@*[starts-with(name(), 'on')]")
    assert not tree.xpath("//*[self::iframe or self::object or self::embed or self::base]")
    assert "49" not in re.sub(r"\d{3,}", "", tree.text_content().partition("7*7")[0][-40:]), "a template in a name is not run"
    ids = tree.xpath("//@id")
    assert len(ids) == len(set(ids))
    assert "\u202e" not in page.body.decode(), "no name turns the direction of what follows"


def test_a_hostile_name_is_shown_as_it_is(pages: Pages) -> None:
    shown = HOSTILE.replace("\u202e", "\\u202e")
    for path in ("/", "/jobs", "/runs", f"/run?name={quote(HOSTILE)}", "/jobs/hostile-4-bb"):
        page = pages.get(path)
        assert page.status == 200 and shown in page.tree.text_content(), path
        assert html.escape("<script>alert", quote=False) in page.body.decode() and b"<script>alert" not in page.body


def test_what_failed_is_said_with_its_cause_and_the_command_that_mends_it(pages: Pages) -> None:
    page = pages.get("/")
    assert "Could not" in page.text and "ckptd queue retry failed-4-41b47ac35339" in page.text
    assert "No daemon runs: the export continues when one is started." in page.text
    assert not page.tree.xpath("//form[@method='post']"), "there are no buttons unless page.control is set"


def test_what_runs_has_its_share_its_memory_and_its_machine_and_what_waits_its_reason(working: Pages) -> None:
    page = working.get("/")
    assert "running, healthy" in page.text and "merge 25 % after 65 s" in page.text and "reads the base" in page.text
    (bar,) = page.tree.xpath("//progress")
    assert float(bar.get("value")) == 0.25 and "merge" in bar.get("aria-label")
    (at,) = page.tree.xpath("//ul[@class='stages']//small")
    assert all(word in at.text_content() for word in ("node3", "slurm", "77", "memory 3.00 GiB", "1.5 cores")), at.text_content()
    waiting = page.tree.xpath("string(//div[@id='waiting'])")
    assert "waits for memory" in waiting and "9.00 GiB are needed" in waiting
    assert page.tree.xpath("//div[@id='disks']//meter") and str(working.home / "runs") in page.text
    assert page.tree.xpath("//form[@action='/queue/pause']")


@pytest.mark.parametrize("path", KINDS)
def test_a_chinese_page_has_no_sentence_in_english(path: str, pages: Pages) -> None:
    pages.get(path, "en")  # what is compiled for a first reader is not left to the next one
    page = pages.get(path, "zh-CN,zh;q=0.9,en;q=0.1")
    assert page.tree.get("lang") == "zh-CN" and page.headers["content-language"] == "zh-CN" and "Accept-Language" in page.headers["vary"]
    spoken = " ".join(f" {text} " for text in page.tree.xpath("//text() | //@aria-label | //@title | //@data-on | //@data-label"))
    sentences = {message.text for message in extracted() if " " in message.text and "{" not in message.text and len(message.text) > 7}
    assert [sentence for sentence in sentences if f" {sentence} " in spoken] == []
    words = {text.strip() for text in page.tree.xpath("//main//text()[not(ancestor::bdi)]")}
    assert words & {"succeeded", "failed", "waiting", "pending", "passed", "running", "partial"} == set()
    labels = page.tree.xpath("//h1/text() | //h2/text() | //th/text() | //dt/text() | //label/text() | //button/text() | //nav//a/text()")
    names = ("SHA-256", "ckptd", "ID", *page.tree.xpath("//bdi/text()"))
    english = [label for label in map(str.strip, labels) if re.search("[A-Za-z]{2}", label) and not re.search("[\u4e00-\u9fff]", label)]
    assert [label for label in english if label not in names and not re.fullmatch("[a-z0-9._/-]+", label)] == [], "but for names"


def test_each_reader_gets_an_own_language_at_the_same_time(pages: Pages) -> None:
    languages = ["en", "zh"] * 20
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda language: pages.get("/jobs", language), languages))
    assert [answer.tree.get("lang") for answer in answers] == ["en", "zh-CN"] * 20
    assert all(("Exports" in answer.text) is (language == "en") for answer, language in zip(answers, languages, strict=True))


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"), ("zh", "zh_CN"), ("zh-CN,zh;q=0.9", "zh_CN"), ("en;q=0.5, zh-Hans;q=0.9", "zh_CN"), ("en, zh;q=0.9", "en"),
        ("zh-TW, en;q=0.5", "en"), ("de, zh;q=0.2", "zh_CN"), ("zh;q=0, en;q=0.1", "en"), ("*", "en"), (";;;,,q=9" * 1000, "en"),
    ],
)  # fmt: skip
def test_the_language_is_the_one_that_is_wanted_most_of_those_that_there_are(accepted: str, language: str) -> None:
    assert wanted_language(accepted) == language


def test_the_pages_of_a_list_have_every_export_once(pages: Pages) -> None:
    with closing(sqlite3.connect(pages.home / "state" / "journal.sqlite3")) as connection:
        every = {row[0] for row in connection.execute("SELECT id FROM job")}
    listed: list[str] = []
    path = "/jobs"
    while path:
        page = pages.get(path)
        listed += [link.rpartition("/")[2] for link in page.tree.xpath("//tbody//th/a/@href")]
        path = next(iter(page.tree.xpath("//a[@rel='next']/@href")), "")
    assert sorted(listed) == sorted(every)


def test_a_list_is_filtered_and_says_what_is_wrong_with_a_filter(pages: Pages) -> None:
    assert pages.get("/jobs?state=failed").text.count("failed · step 4") == 1
    rows = pages.get("/jobs?run=do*&state=").tree.xpath("//tbody//th/a/@href")
    assert len(rows) == len(STEPS) + 1
    wrong = pages.get("/jobs?state=nonsense")
    assert wrong.status == 400 and "'nonsense' is not a state" in wrong.text and wrong.tree.xpath("//nav//a")


def test_the_page_of_a_run_has_loss_and_figures_with_their_intervals_and_what_to_deploy(pages: Pages) -> None:
    page = pages.get("/run?name=done")
    charts = {figure.xpath("string(figcaption)").split("\n")[0] for figure in page.tree.xpath("//figure")}
    assert len(charts) == 5, charts
    assert "Deploy step" in page.text and "perplexity" in page.text
    cells = {" ".join(" ".join(cell.itertext()).split()) for cell in page.tree.xpath("//section[.//h2[@id='figures']]//td")}
    assert {"0.02 0.01 to 0.03", "98 % 95 % to 99 %", "2.5 × 2.0 to 3.0"} <= cells
    assert any("beside the best" in cell or "the best figure" in cell for cell in cells)
    assert page.tree.xpath("//*[local-name()='line' and @class='reach']"), "intervals are drawn"
    assert [link for link in page.tree.xpath("//section[.//h2[@id='figures']]//a/@href") if link.endswith("step-16/report.html")]
    for chart in page.tree.xpath("//*[local-name()='svg' and @role='img']"):
        title = chart.get("aria-labelledby")
        assert page.tree.xpath(f"//*[@id='{title}']")[0].text_content().strip(), "a chart is named for who does not see it"


def test_a_list_that_is_asked_for_something_unknown_says_so(pages: Pages) -> None:
    page = pages.get("/jobs?sate=failed")
    assert page.status == 400 and "'sate'" in page.text and "state, run, since" in page.text


def test_a_run_without_figures_says_so_and_states_have_one_name(pages: Pages) -> None:
    page = pages.get("/run?name=waits")
    assert page.status == 200 and "This run has no export with figures yet." in page.text and "give the name of a run" not in page.text
    assert "waiting" in pages.get("/runs").text and "pending" not in pages.get("/runs").text
    assert "pending" not in pages.get("/jobs").tree.xpath("//select/option/@value")
    assert {"/jobs?state=failed", "/jobs?state=partial"} <= set(pages.get("/").tree.xpath("//div[@id='troubled']//@href"))


def test_styles_and_scripts_are_kept_for_ever_under_their_digest_alone(pages: Pages) -> None:
    (address,) = pages.get("/").tree.xpath("//link[@rel='stylesheet']/@href")
    assert "immutable" in pages.get(address).headers["cache-control"]
    for other in ("/static/page.css", "/static/page.css?v=0"):
        assert pages.get(other).headers["cache-control"] == "no-cache"
    for none in ("/static/routes.py", "/static/..%2froutes.py", "/static/"):
        assert pages.get(none).status == 404


def test_a_button_does_what_the_command_does_and_the_next_page_says_it(steered: Pages) -> None:
    page = steered.get("/jobs/waits-4-86f000835339")
    actions = page.tree.xpath("//form[@method='post']/@action")
    assert {action.rpartition("/")[2] for action in actions} == {"first", "pause", "cancel"}
    origin = {"Origin": steered.address, "Content_Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
    then = page.tree.xpath("//form[@method='post']//input[@name='then']/@value")[0]
    refused = steered.ask("POST", actions[0], body=f"then={then}", **{**origin, "Origin": "http://elsewhere.example"})
    assert refused.status == 403
    cancel = next(action for action in actions if action.endswith("cancel"))
    done = steered.ask("POST", cancel, body=f"then={then}", **origin)
    assert done.status == 303 and done.headers["location"] == then
    cookie = done.headers["set-cookie"].partition(";")[0]
    after = steered.get(then, Cookie=cookie)
    assert "waits-4-86f000835339 is cancelled" in after.text
    assert "cancelled" in after.tree.xpath("string(//section[@id='summary'])")
    assert {action.rpartition("/")[2] for action in after.tree.xpath("//form[@method='post']/@action")} == {"retry"}


def test_the_page_of_many_boxes_has_their_answers_and_of_one_that_is_silent_how_old_they_are(
    pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ROUND_SECONDS", 0.2)
    thaw(STATES / "1.0.0.tar.gz", other := tmp_path / "other")
    with closing(sqlite3.connect(other / "state" / "journal.sqlite3")) as connection:
        (seen,) = connection.execute("SELECT checkpoint FROM job WHERE run = 'waits'").fetchone()
        named = CheckpointRef.model_validate_json(seen).model_copy(update={"run": HOSTILE})
        values = (HOSTILE, named.model_dump_json(), named.identity)
        connection.execute("UPDATE job SET run = ?, checkpoint = ?, identity = ? WHERE run = 'waits'", values)
        connection.commit()
    away = "http://127.0.0.1:9"
    with ExitStack() as box:
        there = box.enter_context(served(other / "state", other / "exports"))
        with served(pages.home / "state", pages.home / "exports", peers=(there, away)) as address:
            here = Pages(address, pages.home)
            assert "/boxes" in here.get("/").tree.xpath("//nav//a/@href")
            wait_until(lambda: "succeeded" in here.get("/boxes").text)
            page = here.get("/boxes")
            assert HOSTILE.replace("\u202e", "\\u202e") in page.tree.text_content() and b"<script>alert" not in page.body
            assert page.text.count("It has never answered") == 1 and " old, of " not in page.text
            assert page.tree.xpath("//h2/a/@href") == [f"{there}/", f"{away}/"]
            box.close()
            wait_until(lambda: " old, of " in here.get("/boxes").text)
            page = here.get("/boxes")
            assert "succeeded" in page.text, "what it said last stays"
            assert (
                not page.tree.xpath("//span[contains(@class, 'healthy')]")
                and len(page.tree.xpath("//article[contains(@class, 'away')]")) == 2
            )
            assert "Boxes (2 away)" in here.get("/").tree.xpath("string(//nav)")


def test_no_address_makes_a_link_to_another_host(pages: Pages) -> None:
    for path in ("//evil.example/x", "/\\evil.example/x", "//evil.example/jobs/" + "9" * 5000):
        page = pages.get(path)
        links = page.tree.xpath("//footer//a/@href")
        assert page.status == 404 and links and not [link for link in links if link.startswith(("//", "/\\"))], path


def test_a_number_of_any_length_in_an_address_is_no_error(pages: Pages) -> None:
    assert pages.get("/jobs/hostile-4-bb/log/merge/" + "1" * 5000).status == 404


def test_a_journal_that_cannot_be_read_is_said_on_a_page(steered: Pages) -> None:
    for file in (steered.home / "state").glob("journal.sqlite3*"):
        file.write_bytes(b"no journal" * 1000)
    page = steered.get("/jobs")
    assert page.status == 503 and page.headers["content-type"].startswith("text/html") and "journal" in page.text


def test_the_page_of_a_run_below_one_root_lists_no_export_of_another(steered: Pages) -> None:
    with closing(sqlite3.connect(steered.home / "state" / "journal.sqlite3")) as connection:
        row = connection.execute("SELECT id, root FROM job WHERE run = 'failed'").fetchone()
        connection.execute(
            "UPDATE job SET run = 'done', root = '/elsewhere', checkpoint = json_set(checkpoint, '$.run', 'done', '$.root', '/elsewhere')"
            " WHERE id = ?", (row[0],),
        )  # fmt: skip
        connection.commit()
    for root, job in ((row[1], "done-4-65e2f9d05339"), ("/elsewhere", row[0])):
        listed = steered.get(f"/run?name=done&root={quote(root)}").tree.xpath("//div[@id='jobs']//a/@href")
        assert {link for link in listed if link.startswith("/jobs/")} == {f"/jobs/{job}"}
