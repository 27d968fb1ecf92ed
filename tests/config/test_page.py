"""`[page]`: what can't be used is refused with what to write instead, and tokens are shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config.loading import WrongValues, load
from daemon.config.page import Address, address_of
from daemon.contract.faults.secrets import censored
from daemon.operating.reload import changes

TOKEN = "0123456789abcdef-of-the-tests"


def read(folder: Path, text: str) -> object:
    (folder / "config.toml").write_text(f"[page]\n{text}\n")
    return load(folder / "config.toml").page


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8470", Address("127.0.0.1", 8470)), ("[::1]:0", Address("::1", 0)), ("localhost:80", Address("localhost", 80)),
        ("0.0.0.0:1", Address("0.0.0.0", 1)), ("unix:/run/a.sock", Address(path="/run/a.sock")),
    ],
)  # fmt: skip
def test_an_address_is_a_host_with_a_port_or_a_socket(listen: str, address: Address) -> None:
    assert address_of(listen) == address
    assert address.is_local is (address.host != "0.0.0.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('listen = "8470"', "write HOST:PORT"), ('listen = ":8470"', "write HOST:PORT"), ('listen = "127.0.0.1:http"', "no port"),
        ('listen = "127.0.0.1:70000"', "no port"), ('listen = "unix:page.sock"', "absolute path"), ('listen = "::1:80"', "HOST:PORT"),
        ('listen = "0.0.0.0:8470"', "a token is needed"), ('listen = "box.example.org:8470"', "a token is needed"),
        ('listen = "[::]:8470"', "a token is needed"), ('listen = "127.0.0.1:1"\ntoken_file = "none"', "there is no such file"),
        ('listen = "127.0.0.1:1"\ncontrol = true', "could press the buttons"), ('url = "box.example.org"', "page.url"),
        ('peers = ["box2"]', "page.peers"), ('peers = ["ftp://box2"]', "page.peers"), ('peers = ["http://a..b:1"]', "page.peers"),
        ('peers = ["http://box2/ü x"]', "page.peers"), ('peers = ["http://box2/x\\n"]', "page.peers"), ('hosts = ["a/b"]', "page.hosts"),
        ('proxies = ["box"]', "page.proxies"), ('proxies = ["10.0.0.5/24"]', "host part"),
    ],
)  # fmt: skip
def test_what_can_not_be_used_is_refused_with_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(WrongValues) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


@pytest.mark.parametrize("token", ["", "short", f"{TOKEN}\n{TOKEN}x", f"{TOKEN[:10]} {TOKEN[10:]}", "é" * 20, "a" * 600])
def test_a_bad_token_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    with pytest.raises(WrongValues) as refused:
        read(tmp_path, 'listen = "0.0.0.0:8470"\ntoken_file = "token"')
    assert "page.token_file" in str(refused.value)
    assert not any(len(word) > 5 and word in str(refused.value) for word in token.split())


@pytest.mark.parametrize(
    ("key", "text"), [("page.peers", '["https://me:secret@box2.example.org"]'), ("page.url", '"https://me:secret@ckptd.example.org"')]
)
def test_a_user_or_a_password_in_an_address_is_refused_and_not_shown(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(WrongValues) as refused:
        read(tmp_path, f'listen = "127.0.0.1:1"\n{key.partition(".")[2]} = {text}')
    assert key in str(refused.value) and "secret@" not in str(refused.value)


@pytest.mark.parametrize("given", ["https://ckptd.example.org/", "http://box:8470"])
@pytest.mark.parametrize("by", ["file", "variable"])
def test_the_address_that_people_know_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, by: str) -> None:
    if by == "variable":
        monkeypatch.setenv("CKPTD_PAGE__URL", given)
    page = read(tmp_path, f'url = "{given}"' if by == "file" else "")
    assert page.url == given.rstrip("/")  # type: ignore[attr-defined]
    assert censored(f"{given}jobs/a") == f"{given}jobs/a"


def test_the_service_manager_may_give_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page-token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    page = read(tmp_path, 'listen = "0.0.0.0:8470"')
    assert page.token.get_secret_value() == TOKEN  # type: ignore[attr-defined]
    assert TOKEN not in repr(page)


def test_a_reload_says_that_a_token_changed_and_not_which(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "config.toml").write_text('[page]\nlisten = "127.0.0.1:1"\ntoken_file = "token"\n')
    before = load(tmp_path / "config.toml")
    (tmp_path / "token").write_text(f"another-{TOKEN}")
    said = changes(before, load(tmp_path / "config.toml"))
    assert len(said) == 1 and "page.token_file" in said[0] and TOKEN not in said[0]
