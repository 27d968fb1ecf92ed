"""Secrets of odd characters, in all files that a target's secret may be in, and in all ways in which a library may write them."""

from __future__ import annotations

import base64
import json
import random
import string
import urllib.parse
from collections.abc import Callable

import pytest

from daemon.contract.faults import secrets

LETTERS = string.ascii_letters + string.digits
ODD = "\"'\\/+=&%#?@:;,{}[]()<>$!|`~^*._- äßé日本語€😀\t"
FILES: dict[str, Callable[[str], str]] = {
    "alone": lambda secret: secret,
    "a line": lambda secret: f"{secret}\n",
    "behind a user": lambda secret: f"robot$ci:{secret}\n",
    "among variables": lambda secret: f"AWS_ACCESS_KEY_ID=AKIA0000\nAWS_SECRET_ACCESS_KEY={secret}\nAWS_REGION=eu-west-1\n",
    "as a shell exports it": lambda secret: f"export AWS_SECRET_ACCESS_KEY={secret}\n",
    "as a profile": lambda secret: f"[default]\naws_access_key_id = AKIA0000\naws_secret_access_key = {secret}\n",
    "among lines": lambda secret: f"-----BEGIN-----\n{secret}\n-----END-----\n",
}
WRITERS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "repr": lambda secret: repr(secret)[1:-1],
    "repr of bytes": lambda secret: repr(secret.encode())[2:-1],
    "JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON with letters": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "a path": urllib.parse.quote,
    "a part of a query": lambda secret: urllib.parse.quote(secret, safe=""),
    "a form": urllib.parse.quote_plus,
    "a header": lambda secret: base64.b64encode(secret.encode()).decode(),
}


def made(seed: int) -> str:
    """A secret without blanks at its ends, since a file's are cut off, and too odd to be a word."""
    chance = random.Random(seed)
    middle = "".join(chance.choice(LETTERS if chance.random() < 0.6 else ODD) for _ in range(chance.randrange(10, 40)))
    return f"A{middle}9"


@pytest.mark.parametrize("file", FILES)
def test_a_secret_is_masked_however_it_is_written(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(200):
        monkeypatch.setattr(secrets, "_known", {})
        secret = made(seed)
        secrets.keep_whole([FILES[file](secret)])
        for name, write in WRITERS.items():
            if file == "among lines" and name == "a header":
                continue  # a key is not sent
            text = secrets.censored(f"refused: <{write(secret)}>")
            assert text == f"refused: <{secrets.STARS}>" or (write(secret) not in text and secret not in text), (seed, name, text)
            assert not any(part in text for part in _pieces(write(secret))), (seed, name, text)


def _pieces(text: str) -> list[str]:
    """Every run of eight characters of it."""
    return [text[place : place + 8] for place in range(len(text) - 7)]


def test_a_user_and_a_password_in_a_header_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(50):
        monkeypatch.setattr(secrets, "_known", {})
        secret = made(seed)
        secrets.keep_whole([f"robot$ci:{secret}\n"])
        header = base64.b64encode(f"robot$ci:{secret}".encode()).decode()
        assert secrets.censored(f"Authorization: Basic {header}") == f"Authorization: Basic {secrets.STARS}"


def test_a_large_key_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})
    for seed in range(3):
        chance = random.Random(seed)
        lines = ["".join(chance.choice(LETTERS + "+/") for _ in range(70)) for _ in range(50)]
        secrets.keep_whole(["-----BEGIN OPENSSH PRIVATE KEY-----\n" + "\n".join(lines) + "\n-----END OPENSSH PRIVATE KEY-----\n"])
    assert len(secrets._known) < secrets.MOST
