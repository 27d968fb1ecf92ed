"""A real daemon that delivers to a Hub: the token is in nothing that it writes, says or starts, whether the Hub takes it or refuses."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.deliver.hub.far_end.stock import stock
from tests.deliver.hub.service import TOKEN
from tests.deliver.proxy import Answer, Fault, Request
from tests.deliver.sites.hub import SITE
from tests.runner.conftest import Toy
from tests.sampling import some

Make = Callable[..., Toy]
Add = Callable[..., Path]
WORDS = f"the token {TOKEN} may not write here"
REFUSAL = Answer(403, {"X-Error-Message": WORDS}, json.dumps({"error": WORDS}).encode())
VERBS = (
    "status", "status --json", "list", "show run/4", "show run/4 --json", "config show", "deliver run/4 far --dry-run",
    "deliver --list far", "deliver run/4 far --again --wait",
)  # fmt: skip


def _table(site: SITE, secret: Path) -> str:
    assert site.proxy is not None
    table = {"name": "far", "kind": "hub", "repo": "me/{run}", "endpoint": site.proxy.url, "secret_file": str(secret)}
    return "\n[[deliver]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


@pytest.mark.parametrize("refused", some([True, False], of=2))
def test_the_token_is_nowhere(make_toy: Make, add: Add, site: SITE, tmp_path: Path, refused: bool) -> None:
    (secret := tmp_path / "token").write_text(TOKEN + "\n")
    secret.chmod(0o600)
    toy = make_toy(extra=_table(site, secret))
    assert site.proxy is not None
    seen: list[str] = []

    def look(request: Request) -> None:
        for process in [*toy.children(), psutil.Process(toy.process.pid if toy.process else None)]:
            seen.append(" ".join(process.cmdline()) + str(process.environ()))

    site.proxy.plan(Fault(answer=REFUSAL if refused else None, before=look), times=None)
    add(toy, step=4)
    toy.start()
    toy.wait_ended(1)
    state = "failed" if refused else "delivered"
    toy.wait_for(lambda value: _states(toy) == [state], 90)
    said = ""
    for words in VERBS:
        toy.run_verb(*words.split())
        said += toy.said
    assert toy.stop() == 0
    assert refused is ("may not write here" in said), "what the Hub said is not said"
    files = [path for folder in (toy.state, toy.exports) for path in folder.rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files) + toy.log().encode()
    assert seen and len(files) > 5
    for text in (*seen, said, written.decode(errors="replace")):
        assert TOKEN not in text
    if not refused:
        assert stock(site.service.url, tmp_path / "home", 'say(len(api.list_repo_refs("me/run").tags))') == 1


def _states(toy: Toy) -> list[str]:
    with sqlite3.connect(f"file:{toy.state / 'journal.sqlite3'}?mode=ro", uri=True) as journal:
        return [str(row[0]) for row in journal.execute("SELECT state FROM shipment")]
