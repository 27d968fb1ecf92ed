"""The buttons: off unless they are wanted; they do what `ckptd queue` does, in the same words, and the log says who pressed them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from structlog.testing import capture_logs

from tests.page.conftest import TOKEN, Site
from tests.verbs import run_verb

Make = Callable[..., Site]
ENDED, WAITING, OTHER = "run-01-1-00000001", "run-05-5-00000005", "run-04-4-00000004"


def press(site: Site, path: str, **headers: str) -> tuple[int, str]:
    answer = site.ask(path, "POST", Origin=site.origin, **headers)
    value = answer.json
    return answer.status, value.get("message") or value["error"]


@pytest.mark.parametrize("path", ["/queue/pause", f"/jobs/{WAITING}/cancel", f"/jobs/{ENDED}/retry"])
def test_nothing_can_be_changed_unless_the_configuration_allows_it(make_site: Make, path: str) -> None:
    site = make_site(jobs=5, waiting=2)
    assert site.ask(path, "POST", Origin=site.origin).status in (404, 405)
    assert site.ask("/api/v1/status").json["counts"] == {"pending": 2, "succeeded": 3}


def test_a_program_is_told_that_buttons_are_off_and_that_it_needs_the_token(make_site: Make) -> None:
    site, closed = make_site(), make_site(token=TOKEN)
    for answer in (site.ask("/queue/pause", "POST"), closed.known("/queue/pause", "POST")):
        assert answer.status == 405 and answer.json["error"] == "the buttons are off" and "page.control" in answer.json["remedy"]
    unknown = closed.ask("/queue/pause", "POST")
    assert unknown.status == 401 and "page.token_file" in unknown.json["remedy"]


def test_buttons_do_and_say_what_the_commands_do(make_site: Make) -> None:
    site = make_site(jobs=5, waiting=2, control=True)
    for whole in (True, False):
        for paused in (False, True):
            for action in ("pause", "resume"):
                said = []
                for ask in (press_of, command_of):
                    site.journal.controls.pause_all(paused)
                    site.journal.controls.pause(WAITING, paused)
                    said.append(ask(site, action, None if whole else WAITING))
                    assert (site.journal.controls.paused_since() is not None) is (action == "pause" if whole else paused)
                assert said[0] == said[1] and said[0]
    assert press_of(site, "first", WAITING) == command_of(site, "first", WAITING)
    assert press(site, f"/jobs/{WAITING}/cancel")[0] == 200
    assert site.ask(f"/api/v1/jobs/{WAITING}").json["state"] == "cancelled"
    for action in ("cancel", "pause", "first", "retry"):
        status, said = press(site, f"/jobs/{ENDED}/{action}")
        refused = command(site, "queue", action, ENDED)
        assert status == 409 and refused.returncode == 2 and said in refused.stderr, action
    assert press(site, "/jobs/nobody/cancel")[0] == 404
    assert site.changed >= 6


def press_of(site: Site, action: str, job: str | None) -> str:
    status, said = press(site, f"/jobs/{job}/{action}" if job else f"/queue/{action}")
    assert status == 200
    return said


def command_of(site: Site, action: str, job: str | None) -> str:
    return command(site, "queue", action, *([job] if job else [])).stdout.strip()


def command(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command on the same state directory comes to."""
    file = site.folder / "config.toml"
    file.write_text(
        f'[watch]\nroots = ["{site.folder}/runs"]\n[state]\ndirectory = "{site.folder}/state"\n[output]\ndirectory = "{site.folder}/out"\n'
    )
    return run_verb([*words, "--config", str(file)], site.folder, os.environ, timeout=60)


def test_the_log_says_who_pressed_a_button(make_site: Make) -> None:
    site = make_site(jobs=5, waiting=2, control=True, token=TOKEN, hosts=["ckptd.example.org"])
    with capture_logs() as lines:
        site.known(f"/jobs/{WAITING}/pause", "POST", X_Forwarded_For="1.2.3.4, 10.0.0.7")
        site.known(f"/jobs/{ENDED}/cancel", "POST")
    said = [(line["client"], line["job"], line["log_level"]) for line in lines if line.get("event_id") == "page.control"]
    assert said == [("10.0.0.7 (token)", WAITING, "info"), ("127.0.0.1 (token)", ENDED, "info")]


def test_a_browser_is_led_back_and_shown_what_was_done(make_site: Make) -> None:
    site = make_site(jobs=5, waiting=2, control=True)
    for path, said in ((f"/jobs/{OTHER}/first", f"{OTHER} is next."), (f"/jobs/{ENDED}/cancel", "Could not cancel")):
        answer = site.ask(path, "POST", "then=%2F%3Fa", Origin=site.origin, Accept="text/html")
        assert answer.status == 303 and answer.headers["location"] == "/?a"
        assert said in unquote(answer.headers["set-cookie"])
        chinese = site.ask(path, "POST", "then=%2F", Origin=site.origin, Accept="text/html", Accept_Language="zh-CN")
        assert "\u3002" in unquote(chinese.headers["set-cookie"]) and said.replace(OTHER, "") not in unquote(chinese.headers["set-cookie"])
