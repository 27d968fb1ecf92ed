"""The page behind the proxies of docs/operating.md, with the very lines that stand there: real programs, TLS, sign-in, the live stream."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.page.conftest import TOKEN, Answer, Site, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.slow

NAME = "ckptd.example.org"
ORIGIN = f"https://{NAME}"
DOCS = Path(__file__).parents[2] / "docs" / "operating.md"
CADDY = """{
    local_certs
    skip_install_trust
    admin off
    auto_https disable_redirects
    http_port %(other)s
    https_port %(port)s
    default_bind 127.0.0.1
    storage file_system %(folder)s/storage
}
"""
NGINX = """daemon off;
pid %(folder)s/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path %(folder)s/body;
    proxy_temp_path %(folder)s/proxy;
    fastcgi_temp_path %(folder)s/fastcgi;
    uwsgi_temp_path %(folder)s/uwsgi;
    scgi_temp_path %(folder)s/scgi;
%(server)s
}
"""


def snippet(program: str) -> str:
    """What docs/operating.md says for it."""
    both = re.search(r"```\n# Caddy\n(.+?)\n# nginx\n(.+?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert both is not None
    return both[1 if program == "caddy" else 2]


@dataclass
class Proxy:
    """A proxy in front of a page."""

    port: int
    trusted: Path
    """The certificate of who signed its own."""

    def connect(self, source: str = "127.0.0.2") -> ssl.SSLSocket:
        """A connection of a client at this address."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        bare = socket.create_connection(("127.0.0.1", self.port), timeout=20, source_address=(source, 0))
        return context.wrap_socket(bare, server_hostname=NAME)

    def ask(self, path: str, method: str = "GET", body: str | None = None, *, source: str = "127.0.0.2", **headers: str) -> Answer:
        """One request, as `Site.ask`."""
        connection = http.client.HTTPConnection(NAME)
        with self.connect(source) as connection.sock:
            given = {"Host": NAME, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def sign_in(self) -> str:
        """The cookie that the form gives."""
        form = {"Origin": ORIGIN, "Content_Type": "application/x-www-form-urlencoded"}
        answer = self.ask("/login", "POST", f"token={quote(TOKEN)}&then=%2Fjobs", **form)
        assert (answer.status, answer.headers["location"]) == (303, "/jobs")
        assert {"Secure", "HttpOnly"} <= {part.strip() for part in answer.headers["set-cookie"].split(";")}
        return answer.headers["set-cookie"].partition(";")[0]

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return self.ask("/healthz").status in (200, 503)
        except OSError:
            return False


def _caddy(folder: Path, site: Site, port: int) -> tuple[list[str], Path]:
    text = CADDY % {"folder": folder, "port": port, "other": free_port()} + snippet("caddy")
    (folder / "Caddyfile").write_text(text.replace("127.0.0.1:8470", f"127.0.0.1:{site.port}"))
    command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    return command, folder / "storage/pki/authorities/local/root.crt"


def _nginx(folder: Path, site: Site, port: int) -> tuple[list[str], Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    more = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make, *more], check=True, capture_output=True)
    server = snippet("nginx")
    for before, after in {
        "127.0.0.1:8470": f"127.0.0.1:{site.port}", "listen 443": f"listen 127.0.0.1:{port}",
        "# ssl_certificate …": f"ssl_certificate {certificate}; ssl_certificate_key {key};",
    }.items():  # fmt: skip
        assert before in server
        server = server.replace(before, after)
    (folder / "nginx.conf").write_text(NGINX % {"folder": folder, "server": server})
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"], certificate


PROGRAMS = {"caddy": _caddy, "nginx": _nginx}
Make = Callable[..., tuple[Site, Proxy]]


@pytest.fixture(params=PROGRAMS)
def behind(request: pytest.FixtureRequest, tmp_path: Path, make_site: Callable[..., Site]) -> Iterator[Make]:
    """Gives what starts a page and a proxy in front of it."""
    program = request.param
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    if shutil.which(program, path=path) is None:
        pytest.skip(f"there is no {program} here")
    with contextlib.ExitStack() as stack:

        def make(**page: object) -> tuple[Site, Proxy]:
            folder, port = tmp_path / program, free_port()
            folder.mkdir()
            site = make_site(**{"token": TOKEN, "hosts": [NAME], "url": ORIGIN, "jobs": 3, **page})
            command, trusted = PROGRAMS[program](folder, site, port)
            log = stack.enter_context((folder / "log").open("wb"))
            environment = {**os.environ, "PATH": path, "HOME": str(folder)}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            proxy = Proxy(port, trusted)
            wait_until(lambda: process.poll() is not None or (trusted.exists() and proxy.is_up))
            assert process.poll() is None, (folder / "log").read_text()
            return site, proxy

        yield make


def test_a_person_signs_in_and_a_change_is_told_at_once(behind: Make) -> None:
    site, proxy = behind(control=True)
    led = proxy.ask("/", Accept="text/html")
    assert (led.status, led.headers["location"]) == (303, "/login?then=%2F")
    cookie = proxy.sign_in()
    page = proxy.ask("/jobs", Accept="text/html", Cookie=cookie)
    assert page.status == 200 and b"run-01" in page.body and page.headers["content-security-policy"].startswith("default-src 'none'")
    connection = http.client.HTTPConnection(NAME)
    with proxy.connect() as connection.sock:
        connection.request("GET", "/events", headers={"Host": NAME, "Cookie": cookie, "Accept-Encoding": "gzip"})
        stream = connection.getresponse()
        lines = [stream.readline() for _ in range(4)]
        assert b"event: begin\n" in lines
        time.sleep(1.5)  # until its first look
        pressed = proxy.ask("/queue/pause", "POST", "", Cookie=cookie, Origin=ORIGIN, Sec_Fetch_Site="same-origin")
        assert pressed.status == 200 and site.journal.controls.paused_since() is not None
        assert stream.readline() == b"event: changed\n"


def test_what_is_sent_far_is_compressed(behind: Make) -> None:
    _, proxy = behind()
    known = {"Accept_Encoding": "gzip", "Authorization": f"Bearer {TOKEN}"}
    for path, kind in (("/jobs", "text/html"), ("/api/v1/status", "application/json")):
        answer = proxy.ask(path, Accept=kind, **known)
        plain = gzip.decompress(answer.body)
        assert answer.headers["content-encoding"] == "gzip" and len(answer.body) < len(plain) / 2 and b"run-01" in plain


def test_a_request_of_another_page_or_to_another_name_changes_and_shows_nothing(behind: Make) -> None:
    site, proxy = behind(control=True)
    cookie = proxy.sign_in()
    for headers in ({"Origin": "https://evil.example"}, {"Origin": ORIGIN, "Sec_Fetch_Site": "cross-site"}, {}):
        assert proxy.ask("/queue/pause", "POST", "", Cookie=cookie, **headers).status == 403, headers
    assert site.journal.controls.paused_since() is None
    other = proxy.ask("/jobs", Cookie=cookie, Host="evil.example")
    assert b"run-0" not in other.body


def test_who_guesses_tokens_holds_up_nobody_else_whatever_address_he_makes_up(behind: Make) -> None:
    _, proxy = behind()
    guess = {"Authorization": f"Bearer {'0' * 20}"}
    guessed = [proxy.ask("/api/v1/status", X_Forwarded_For=f"10.0.0.{number}", **guess).status for number in range(12)]
    assert guessed == [401] * 10 + [429] * 2
    assert proxy.ask("/api/v1/status", source="127.0.0.3", Authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize("how", ["both lengths", "two lengths", "an odd coding", "a line that goes on"])
def test_no_second_request_hides_in_the_body_of_another(behind: Make, how: str) -> None:
    site, proxy = behind(control=True)
    hidden = f"POST /queue/pause HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: Bearer {TOKEN}\r\nX: "
    chunk = f"0\r\n\r\n{hidden}"
    framing = {
        "both lengths": f"Content-Length: {len(chunk)}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}",
        "two lengths": f"Content-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}",
        "an odd coding": f"Content-Length: {len(chunk)}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n{chunk}",
        "a line that goes on": f"Content-Length: {len(chunk)}\r\nTransfer-Encoding:\r\n chunked\r\n\r\n{chunk}",
    }[how]
    with proxy.connect() as client:
        client.sendall(f"POST /login HTTP/1.1\r\nHost: {NAME}\r\nOrigin: {ORIGIN}\r\n{framing}".encode("latin-1"))
        client.settimeout(3)
        with contextlib.suppress(OSError):
            while client.recv(1 << 16):
                pass
    proxy.ask("/healthz")
    assert site.journal.controls.paused_since() is None
