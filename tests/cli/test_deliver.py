"""`ckptd deliver`, as people type it, on a real daemon: carried, listed, taken away; what keeps it from there is said without a secret."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.journal.journal import Journal
from tests.deliver.shelf import installed
from tests.runner.conftest import Toy
from tests.verbs import run_verb

Make = Callable[..., Toy]
Add = Callable[..., Path]
SECRET = "hush-hush-0123456789"
TABLE = '\n[[deliver]]\nname = "{name}"\nkind = "shelf"\nfolder = "{folder}"\nruns = ["nobody-*"]\n{more}\n'


class Box:
    """A daemon with an ended export, and a shelf to which nothing goes by itself."""

    def __init__(self, make_toy: Make, add: Add, folder: Path, site: Path, more: str = "") -> None:
        self.shelf = folder / "shelf"
        self.shelf.mkdir()
        (folder / "key").write_text(SECRET)
        (folder / "key").chmod(0o600)
        lies = {"name": "lies", "folder": self.shelf, "more": f'stubborn = true\nsecret_file = "{folder}/key"'}
        figures = f'[metrics]\ntextfile = "{folder}/ckptd.prom"\n'
        self.toy = make_toy(extra=figures + TABLE.format(name="shelf", folder=self.shelf, more=more) + TABLE.format(**lies))
        self.toy.environment |= installed(site)
        add(self.toy, step=4)
        self.toy.start()
        self.toy.wait_for(lambda value: any(job["state"] == "succeeded" for job in value["jobs"]))

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.toy.environment}
        return run_verb(["deliver", *words, "--config", str(self.toy.config)], Path.cwd(), environment, timeout=240)

    def shown(self, *words: str, code: int = 0) -> str:
        """What another verb prints."""
        environment = {**os.environ, **self.toy.environment}
        done = run_verb([*words, "--config", str(self.toy.config)], Path.cwd(), environment, timeout=240)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def answer(self, *words: str) -> Any:
        done = self.type(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def there(self) -> list[str]:
        return sorted(path.name for path in self.shelf.iterdir() if not path.name.startswith("."))


@pytest.fixture
def box(make_toy: Make, add: Add, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Box:
    return Box(make_toy, add, tmp_path, tmp_path_factory.getbasetemp() / "shelf-site")


def test_an_export_is_delivered_by_hand_listed_and_taken_away(box: Box) -> None:
    (plan,) = box.answer("run/4", "shelf", "--dry-run")
    assert (plan["state"], plan["variants"], plan["problem"]) == ("planned", ["pytorch"], None)
    files = [path for path in Path(box.toy.status()["jobs"][0]["target"]).rglob("*") if path.is_file() and path.name != "MANIFEST.json"]
    assert plan["files"] == len(files) and plan["bytes"] == sum(path.stat().st_size for path in files)
    assert box.there() == [] and box.answer("--list", "shelf") == []

    done = box.type("run/4", "shelf", "--wait")
    (version,) = (name for name in box.there() if name != "latest")
    assert done.returncode == 0 and f"lies at shelf: {box.shelf}/{version} (version {version})" in done.stdout
    (row,) = box.answer("--list", "shelf", "--run", "run")
    assert (row["version"], row["run"], row["step"], row["current"]) == (version, "run", 4, True)
    assert box.answer("--list", "shelf", "--run", "another") == []

    (again,) = box.answer("run/4", "shelf")
    assert (again["state"], again["entered"], again["version"]) == ("delivered", False, version), "what lies there is not carried again"
    (forced,) = box.answer("run/4", "shelf", "--again", "--wait")
    assert (forced["state"], forced["entered"]) == ("delivered", True)

    refused = box.type("--remove", "shelf", version)
    assert refused.returncode == 2 and f"{version} is what people get there now" in refused.stderr and box.there() == ["latest", version]
    assert "there is no version 'run-4'" in box.type("--remove", "shelf", "run-4").stderr
    assert box.answer("--remove", "shelf", version, "--force") == {"target": "shelf", "removed": [version]}
    assert version not in box.there()


def test_every_view_says_where_an_export_lies_and_what_a_failed_delivery_needs(box: Box) -> None:
    assert box.type("run/4", "shelf", "lies", "--wait").returncode == 1
    (version,) = (name for name in box.there() if name != "latest")
    (job,) = box.toy.status()["jobs"]
    failed, lies = job["deliveries"]
    assert (lies["target"], lies["state"], lies["version"], lies["place"]) == ("shelf", "delivered", version, f"{box.shelf}/{version}")
    assert lies["moved"] and lies["by_hand"] and lies["error"] is None and lies["sent"] > 0
    assert (failed["target"], failed["state"], failed["version"]) == ("lies", "failed", None) and "403" in failed["error"]
    assert [(row["target"], row["counts"]) for row in box.toy.status()["deliveries"]] == [
        ("lies", {"failed": 1}),
        ("shelf", {"delivered": 1}),
    ]

    words = {verb: box.shown(*verb.split()) for verb in ("status", "list", "show run/4")}
    again = f"ckptd deliver {job['id']} lies"
    assert "deliveries to lies: 1 failed (`ckptd list` names them): " in words["status"] and "opens nothing" in words["status"]
    assert all("not delivered to lies: " in text and again in text for text in words.values()), words
    assert "at shelf" in words["list"]
    assert (
        f"delivery shelf: delivered {box.shelf}/{version} ({version})" in words["show run/4"] and f"ls {box.shelf}" in words["show run/4"]
    )
    assert not [text for text in words.values() if SECRET in text]

    checked = box.shown("check", code=2)
    assert "deliver.lies (shelf): the far end answered 403: the key *** opens nothing (" in checked
    assert "); correct the target's secret, or give it the right to write there" in checked and "lies (shelf)" in checked.split("wrong")[0]
    assert "deliver.shelf" not in checked

    figures = (box.shelf.parent / "ckptd.prom").read_text
    box.toy.wait_for(lambda value: 'ckptd_deliveries{state="failed",target="lies"} 1.0' in figures(), 60)
    assert 'ckptd_deliveries{state="delivered",target="shelf"} 1.0' in figures()
    assert f'ckptd_delivered_bytes{{target="shelf"}} {float(lies["sent"])}' in figures()


def test_check_does_not_wait_for_a_target_that_does_not_answer(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(TABLE.format(name="slow", folder=tmp_path, more="slow = 3600") + f'[state]\ndirectory = "{tmp_path}/state"\n')
    code = (
        "import sys; from daemon.delivering import asking; from daemon.operating.diagnosis import deliveries\n"
        "from daemon.config.loading import load; from pathlib import Path\n"
        "deliveries.LOOK_SECONDS = 2.0\n"
        "print(*deliveries.problems_of_deliveries(load(Path(sys.argv[1]))), sep='\\n')"
    )
    environment = {**os.environ, **installed(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code, str(config)], env=environment, capture_output=True, text=True, timeout=120)
    assert "deliver.slow (shelf): it has not answered for 2 s; look at the service" in done.stdout, done.stderr


def test_without_a_daemon_it_is_said_and_the_next_one_carries_it(box: Box) -> None:
    assert box.toy.stop() == 0
    assert "no daemon runs, so it is carried when one is started" in box.type("run/4", "shelf").stdout
    waited = box.type("run/4", "shelf", "--wait")
    assert waited.returncode == 2 and "no daemon runs on this state directory" in waited.stderr
    with contextlib.closing(Journal(box.toy.state / "journal.sqlite3")) as journal:  # as a daemon leaves it that was killed
        (shipment,) = (row for row in journal.shipments.of(box.toy.status()["jobs"][0]["id"]) if row.target == "shelf")
        assert journal.shipments.claim(shipment)
    assert "no daemon runs, so it is carried when one is started" in box.type("run/4", "shelf").stdout
    assert box.type("run/4", "shelf", "--wait").returncode == 2
    box.toy.start()
    box.toy.wait_for(lambda value: "latest" in box.there())


def test_what_keeps_it_from_there_is_said_without_the_secret_and_the_exit_code_tells(box: Box) -> None:
    done = box.type("run/4", "lies", "--wait")
    assert done.returncode == 1 and "does not lie at lies" in done.stdout and "403" in done.stdout
    (plan,) = box.answer("run/4", "lies", "--dry-run")
    assert "the key *** opens nothing" in plan["problem"]
    listed = box.type("--list", "lies")
    assert listed.returncode == 1 and "opens nothing" in listed.stderr
    everything = [done.stdout, listed.stderr, box.toy.log(), *(path.read_text() for path in box.toy.state.rglob("*.log"))]
    assert not [text for text in everything if SECRET in text]
    assert SECRET.encode() not in (box.toy.state / "journal.sqlite3").read_bytes()


def test_who_waits_is_told_for_what_and_leaves_by_ctrl_c_while_the_daemon_goes_on(make_toy: Make, add: Add, tmp_path: Path) -> None:
    away = tmp_path / "not mounted"
    box = Box(
        make_toy,
        add,
        tmp_path,
        tmp_path / "site",
        f'[[deliver]]\nname = "away"\nkind = "store"\nurl = "file://{away}"\nruns = ["nobody-*"]',
    )
    with subprocess.Popen(
        [sys.executable, "-m", "daemon", "deliver", "run/4", "away", "--wait", "--config", str(box.toy.config)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **box.toy.environment, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as waiting:  # fmt: skip
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
        waiting.send_signal(signal.SIGINT)
        out, errors = waiting.communicate(timeout=120)
    assert re.search(r"does not lie at away yet, and is tried again at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) and str(away) in line, line
    assert (waiting.returncode, out) == (130, "") and "the daemon goes on with the delivery" in errors and "Traceback" not in errors
    (delivery,) = box.toy.status()["jobs"][0]["deliveries"]
    assert delivery["state"] in ("waiting", "running")
    away.mkdir()
    box.answer("run/4", "away")
    box.toy.wait_for(lambda value: value["jobs"][0]["deliveries"][0]["state"] == "delivered")


def test_what_does_not_go_together_is_said_in_a_sentence(box: Box) -> None:
    for words, said in {
        (): "no export is named",
        ("run/4", "shelv"): "there is no target 'shelv'; did you mean 'shelf'?",
        ("run/4",): "no target is for the run 'run'",
        ("run/5", "shelf"): "'run/5' is no run and step of a job",
        ("--list", "shelf", "run"): "'run' is one word too many for --list",
        ("--list", "shelf", "--remove", "shelf"): "--list and --remove are two things",
        ("--list", "shelf", "--dry-run"): "--dry-run is for a delivery, and not for --list",
        ("--remove", "shelf"): "no version is named",
        ("run/4", "shelf", "--run", "run"): "--run is for --list",
    }.items():
        done = box.type(*words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
