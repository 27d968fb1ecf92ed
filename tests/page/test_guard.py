"""Who may ask the page: names, tokens, cookies, and requests that come from another page. Real requests to a real server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from starlette.datastructures import Headers

from daemon.config.page import PageSettings
from daemon.page.access import tokens
from daemon.page.access.guard import MOST_BODY
from daemon.page.access.login import here
from tests.page.conftest import TOKEN, Answer, Site, say_alive

Make = Callable[..., Site]


def sign_in(site: Site, token: str = TOKEN, **headers: str) -> Answer:
    """Send the form as a browser does."""
    given = {"Origin": site.origin, "Content_Type": "application/x-www-form-urlencoded", **headers}
    return site.ask("/login", "POST", f"token={quote(token)}&then=%2F", **given)


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def test_a_request_by_another_name_is_refused_so_that_no_other_page_reads_this_one(make_site: Make) -> None:
    site = make_site()
    for host in ("evil.example", "evil.example:8470", "127.0.0.1.evil.example", "localhost.evil.example", "", "x@127.0.0.1", "a b"):
        answer = site.ask("/api/v1/status", Host=host)
        assert answer.status in (400, 421) and b"state_directory" not in answer.body, host
    for host in ("localhost", f"127.0.0.1:{site.port}", "[::1]:80", "LOCALHOST"):
        assert site.ask("/api/v1/status", Host=host).status == 200, host


def test_the_configuration_names_further_hosts(make_site: Make) -> None:
    site = make_site(hosts=["ckptd.example.org"])
    assert site.ask("/api/v1/status", Host="ckptd.example.org").status == 200
    assert site.ask("/api/v1/status", Host="www.ckptd.example.org").status == 421


def test_without_the_token_nothing_is_said_but_whether_the_daemon_is_well(make_site: Make) -> None:
    site = make_site(token=TOKEN, jobs=3)
    for path in ("/", "/api/v1/status", "/api/v1/jobs", "/api/v1/openapi.json", "/metrics", "/events", "/nothing", "/api/v1/nothing"):
        answer = site.ask(path)
        assert answer.status == 401 and "bearer" in answer.headers["www-authenticate"].lower(), path
        assert b"run-0" not in answer.body and str(site.folder).encode() not in answer.body
    assert site.known("/api/v1/status").status == 200
    say_alive(site, verdict="healthy", unwell=("a secret of this machine",))
    time.sleep(1.1)
    for path in ("/healthz", "/readyz"):
        answer = site.ask(path, Host="10.1.2.3:80")
        assert (answer.status, answer.body) == (200, b"ok\n")


def test_a_browser_without_the_token_is_led_to_the_form_and_back(make_site: Make) -> None:
    site = make_site(token=TOKEN)
    led = site.ask("/?run=a%26b", Accept="text/html")
    assert led.status == 303 and led.headers["location"] == "/login?then=%2F%3Frun%3Da%2526b"
    assert b'name="token"' in site.ask(led.headers["location"]).body
    answer = sign_in(site)
    assert answer.status == 303 and answer.headers["location"] == "/"
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in answer.headers["set-cookie"].split(";")}
    assert TOKEN not in answer.headers["set-cookie"]
    assert site.ask("/api/v1/status", Cookie=cookie_of(answer)).status == 200
    assert "secure" in sign_in(site, X_Forwarded_Proto="https").headers["set-cookie"].lower()


def test_a_cookie_counts_until_its_time_and_only_for_the_token_that_it_was_given_for(
    make_site: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(token=TOKEN)
    name, _, value = cookie_of(sign_in(site)).partition("=")
    until, _, signed = value.partition(".")
    later = str(int(until) + 1)
    for wrong in (f"{later}.{signed}", f"{until}.{signed[:-1]}", "", ".", f"{until}.", tokens.session("another-token-of-16"), "é.é"):
        assert site.ask("/api/v1/status", Cookie=f"{name}={wrong}".encode().decode("latin-1")).status == 401, wrong
    over = tokens.session(TOKEN, time.time() - tokens.SESSION_SECONDS - 1)
    assert site.ask("/api/v1/status", Cookie=f"{name}={over}").status == 401
    assert site.ask("/api/v1/status", Cookie=f"{name}={value}").status == 200


def test_tokens_can_be_guessed_ten_times_a_minute_and_then_not_even_a_right_one_is_looked_at(make_site: Make) -> None:
    site = make_site(token=TOKEN, hosts=["ckptd.example.org"])
    answers = [site.ask("/api/v1/status", Authorization=f"Bearer {number:020}").status for number in range(15)]
    assert answers == [401] * tokens.MOST_WRONG + [429] * 5
    refused = site.known("/api/v1/status")
    assert refused.status == 429 and 1 <= int(refused.headers["retry-after"]) <= tokens.WRONG_SECONDS + 1
    assert sign_in(site).status == 429
    assert site.known("/api/v1/status", X_Forwarded_For="10.0.0.7").status == 200  # a proxy on this machine names its client
    assert sign_in(site, "wrong", X_Forwarded_For="10.0.0.7").status == 403


def test_addresses_that_are_made_up_give_no_more_tries(make_site: Make) -> None:
    site = make_site(token=TOKEN)
    guessed = [guess(site, f"10.0.0.{number}") for number in range(tokens.MOST_WRONG + 2)]
    assert guessed == [401] * tokens.MOST_WRONG + [429] * 2, "without a proxy the header says nothing"
    behind = make_site(token=TOKEN, url="https://ckptd.example.org")
    guessed = [guess(behind, f"10.0.{number}.1") for number in range(tokens.MOST_WRONG_FORWARDED + 2)]
    assert guessed == [401] * tokens.MOST_WRONG_FORWARDED + [429] * 2
    assert behind.known("/api/v1/status").status == 200, "who comes without the proxy is another client"


@pytest.mark.parametrize(
    ("address", "said", "page", "client"),
    [
        ("10.0.0.5", ["192.0.2.1"], {"proxies": ["10.0.0.5"]}, "192.0.2.1"),
        ("10.0.0.6", ["192.0.2.1"], {"proxies": ["10.0.0.5"]}, "10.0.0.6"),
        ("10.0.0.6", ["192.0.2.1"], {"hosts": ["ckptd.example.org"]}, "10.0.0.6"),
        ("10.0.0.6", ["192.0.2.1"], {"proxies": ["10.0.0.0/29", "fd00::/8"]}, "192.0.2.1"),
        ("::ffff:10.0.0.5", ["2001:db8::1"], {"proxies": ["10.0.0.5"]}, "2001:db8::1"),
        ("10.0.0.5", ["192.0.2.1"], {"proxies": ["::ffff:10.0.0.5"]}, "192.0.2.1"),
        ("10.0.0.9", ["192.0.2.1"], {"proxies": ["::ffff:10.0.0.0/125"]}, "10.0.0.9"),
        ("fd00::5", ["192.0.2.1"], {"proxies": ["10.0.0.0/29", "fd00::/8"]}, "192.0.2.1"),
        ("10.0.0.5", ["192.0.2.1, 192.0.2.2"], {"proxies": ["10.0.0.5"]}, "192.0.2.2"),
        ("10.0.0.5", ["192.0.2.1", "192.0.2.2"], {"proxies": ["10.0.0.5"]}, "192.0.2.2"),
        ("10.0.0.5", ["192.0.2.1", "nobody"], {"proxies": ["10.0.0.5"]}, "10.0.0.5"),
        ("10.0.0.5", [], {"proxies": ["10.0.0.5"]}, "10.0.0.5"),
        ("::ffff:127.0.0.1", ["192.0.2.1"], {"url": "https://ckptd.example.org"}, "192.0.2.1"),
    ],
)
def test_who_asks_is_said_by_the_proxies_that_the_configuration_names(
    address: str, said: list[str], page: dict[str, Any], client: str
) -> None:
    headers = Headers(raw=[(b"x-forwarded-for", value.encode()) for value in said])
    asks = tokens.client_of({"type": "http", "client": (address, 1)}, headers, PageSettings(**page))
    assert asks == tokens.Client(client, client != address)


def guess(site: Site, address: str) -> int:
    return site.ask("/api/v1/status", Authorization=f"Bearer {'0' * 20}", X_Forwarded_For=address).status


def test_the_form_speaks_the_readers_language_and_says_where_the_token_is(make_site: Make) -> None:
    site = make_site(token=TOKEN)
    chinese, english = (site.ask("/login", Accept_Language=language) for language in ("zh-CN", "en"))
    assert b'lang="en"' in english.body and b"<code>page.token_file</code>" in english.body
    assert b'lang="zh-CN"' in chinese.body and chinese.headers["content-language"] == "zh-CN" and b"Show the page" not in chinese.body
    assert b"This token is wrong." not in sign_in(site, "wrong", Accept_Language="zh-CN").body


def test_the_time_of_wrong_tokens_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr(tokens.time, "monotonic", lambda: moment)
    tries = tokens.Tries()
    one, other = tokens.Client("a", False), tokens.Client("b", False)
    assert [tries.wrong(one) for _ in range(tokens.MOST_WRONG)] == [True] + [False] * (tokens.MOST_WRONG - 1)
    assert tries.wait(one) == tokens.WRONG_SECONDS and tries.wait(other) == 0
    moment += tokens.WRONG_SECONDS
    assert tries.wait(one) == 0 and not tries.wrong(one)
    for number in range(3 * tokens.MOST_CLIENTS):
        tries.wrong(tokens.Client(f"client {number}", False))
    assert tries.wait(tokens.Client("nobody", False)) > 0 and len(tries._by_client) <= tokens.MOST_CLIENTS


def test_what_would_change_something_must_come_from_this_page(make_site: Make) -> None:
    site = make_site(control=True)
    own = site.origin
    foreign: list[dict[str, str]] = [
        {}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"https://evil.example/{own}"},
        {"Origin": "http://127.0.0.1:1"}, {"Origin": own, "Sec_Fetch_Site": "cross-site"}, {"Origin": own, "Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
    ]  # fmt: skip
    for headers in foreign:
        assert site.ask("/queue/pause", "POST", **headers).status == 403, headers
        assert site.journal.controls.paused_since() is None
    for headers in ({"Origin": own}, {"Sec_Fetch_Site": "same-origin"}):
        assert site.ask("/queue/pause", "POST", **headers).status == 200, headers
    assert site.journal.controls.paused_since() is not None
    assert site.ask("/queue/resume").status in (404, 405) and site.journal.controls.paused_since() is not None


def test_a_program_with_the_token_needs_no_origin_and_a_cookie_does(make_site: Make) -> None:
    site = make_site(token=TOKEN, control=True)
    cookie = cookie_of(sign_in(site))
    assert site.ask("/queue/pause", "POST", Cookie=cookie).status == 403
    assert site.ask("/queue/pause", "POST", Cookie=cookie, Authorization=f"Bearer {TOKEN}").status == 403
    assert site.ask("/queue/pause", "POST", Cookie=cookie, Origin="http://evil.example").status == 403
    assert site.journal.controls.paused_since() is None
    assert site.known("/queue/pause", "POST").status == 200
    assert site.ask("/queue/resume", "POST", Cookie=cookie, Origin=site.origin).status == 200


@pytest.mark.parametrize(
    "then", ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "", "/login?then=/", "/\t/evil.example", "javascript:1"]
)
def test_the_form_leads_to_no_other_page(then: str) -> None:
    assert here(then) == "/"
    assert here("/jobs/a?b=c") == "/jobs/a?b=c"


def test_every_answer_tells_a_browser_to_load_nothing_from_elsewhere(make_site: Make) -> None:
    site = make_site()
    asked = [
        site.ask("/"), site.ask("/login"), site.ask("/nothing"), site.ask("/api/v1/status"), site.ask("/", Host="evil"),
        site.ask("/", "DELETE", Origin=site.origin), site.ask("/healthz"), site.ask("/login", "POST"),
    ]  # fmt: skip
    for answer in asked:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers


def test_a_body_or_a_head_without_end_is_refused(make_site: Make) -> None:
    site = make_site(token=TOKEN)
    assert site.ask("/login", "POST", b"a" * (MOST_BODY + 1), Origin=site.origin).status == 413
    assert site.ask("/login?" + "a" * 20_000).status == 414
    with site.open() as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(100):
            client.sendall(b"X-Long: " + b"a" * 10_000)
        assert not client.recv(4096).startswith(b"HTTP/1.1 2")
    with site.open() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"\0" * 10)
        assert client.recv(4096).startswith(b"HTTP/1.1 ")
    with site.open() as client:
        client.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400")
    assert site.known("/api/v1/status").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd", "/static/%2e%2e/%2e%2e/etc/passwd", "/static/..%2f..%2fsettings.toml", "//etc/passwd",
        "/api/v1/jobs/..%2f..%2f..%2fetc%2fpasswd", "/api/v1/jobs/%2fetc%2fpasswd/report", "/api/v1/jobs/a/log/..%2f..%2ftoken",
        "/api/v1/quality?run=/etc", "/api/v1/quality?run=..%2f..", "/api/v1/jobs?run=..%2f..%2fetc", "/api/v1/jobs/%00", "/static/%00",
        "/api/v1/jobs/run-00-40-00000028/log/..%2f..%2f..%2fjournal.sqlite3",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_what_the_page_shows(make_site: Make, path: str) -> None:
    site = make_site(jobs=40)
    answer = site.ask(path)
    assert answer.status in (200, 400, 404) and b"root:" not in answer.body and b"SQLite" not in answer.body
    assert answer.status != 200 or answer.json == {"jobs": [], "next": None}


def test_what_is_no_form_and_no_address_is_refused(make_site: Make) -> None:
    site = make_site(token=TOKEN)
    form = {"Origin": site.origin, "Content_Type": "application/x-www-form-urlencoded"}
    assert site.ask("/login", "POST", "&".join(f"a{number}=1" for number in range(20)), **form).status == 403
    assert site.ask("/login", "POST", f"token={TOKEN}", **{**form, "Origin": "http://["}).status == 403
    assert sign_in(site).status == 303
