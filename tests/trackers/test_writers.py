"""The processes that write to trackers, without the libraries: what they get, what they say, and what stays of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.config.loading import load
from daemon.config.notify import NotifySettings
from daemon.config.receivers import Tracker
from daemon.journal.outbox import enter_message
from daemon.journal.rows import Message, Notice
from daemon.operating.diagnosis.doctor import examine
from daemon.publishing.telling.sender import Sender
from daemon.publishing.telling.trackers import delivery, writer
from tests.notify.conftest import Notify, deliver
from tests.notify.http_receivers import WAIT
from tests.trackers.conftest import Exports


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """Makes an interpreter: a program in sh, which gets a mode and a kind as $2 and $3."""

    def make(text: str) -> str:
        program = tmp_path / "interpreter"
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)
        return str(program)

    return make


@pytest.fixture
def own_sending() -> Iterator[Sender]:
    """A sending process that is started now."""
    sender = Sender()
    yield sender
    sender.end()


def settings(*others: dict[str, Any], **table: Any) -> NotifySettings:
    return NotifySettings(targets=[{"name": "it", "tensorboard": "/events", **table}, *others]).with_file()  # type: ignore[arg-type]


def test_a_look_takes_nothing_from_the_sending_process_and_says_nothing_to_it(
    exports: Exports, notifier_of: Notify, interpreter: Callable[[str], str], tmp_path: Path
) -> None:
    greedy = interpreter(f'echo "noise of a wrapper"; cat > {tmp_path}/taken; [ "$2" = look ] && exit 3; exit 0\n')
    notifier = notifier_of(settings({"name": "beside", "command": [sys.executable, "-c", "import time; time.sleep(1)"]}, python=greedy))
    exports.ends(4)
    exports.ends(6)
    exports.journal.database.write("tell", lambda c: enter_message(c, "", Notice("disk_low", "full", "body")))
    deliver(notifier)
    assert (tmp_path / "taken").read_text() == ""
    assert sorted(row[0] for row in exports.waiting()) == ["delivered"] * 3 + ["pending"] * 2


def test_a_line_that_is_no_answer_counts_as_nothing(own_sending: Sender) -> None:
    receiver = NotifySettings(targets=[{"name": "it", "command": ["true"]}]).with_file().receivers[0]  # type: ignore[arg-type]
    attempt = own_sending.begin(receiver, Message(1, "job", "succeeded", "title", "body", 0.0))
    assert own_sending._process is not None
    own_sending._process._read = b'noise\n[1]\n3\n{}\n{"id": 99}\n'
    while (outcome := attempt.poll()) is None:
        time.sleep(0.01)
    assert outcome.error is None


def test_a_look_and_a_writer_get_the_same_of_the_environment(
    interpreter: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/another/interpreter")
    assert delivery.fault_of("mlflow", Tracker(interpreter(f"env > {tmp_path}/environment\n"))) is None
    assert "PYTHON" not in (tmp_path / "environment").read_text() and "PATH=" in (tmp_path / "environment").read_text()


def test_what_a_tracker_refuses_is_given_up_and_the_next_one_goes_on(
    exports: Exports, notifier_of: Notify, interpreter: Callable[[str], str]
) -> None:
    refusing = interpreter('[ "$2" = look ] && exit 0; grep -q llama-4-0123 && { echo "a bad step"; exit 65; }; exit 0\n')
    notifier = notifier_of(settings(python=refusing))
    exports.ends(4)
    exports.ends(6)
    for _ in range(4):
        exports.journal.outbox.hasten()
        deliver(notifier)
    (refused, accepted) = exports.waiting()
    assert refused[:2] == ("abandoned", 3) and accepted[0] == "delivered"


def test_a_killed_writer_leaves_no_folder(exports: Exports, notifier_of: Notify, interpreter: Callable[[str], str], tmp_path: Path) -> None:
    mortal = interpreter(f'[ "$2" = look ] && exit 0; mkdir $TMPDIR/made; echo $TMPDIR/made > {tmp_path}/where; kill -9 $$\n')
    notifier = notifier_of(settings(python=mortal))
    exports.ends(4)
    deliver(notifier)
    scratch = Path((tmp_path / "where").read_text().strip()).parent
    assert exports.waiting()[0][0] == "pending" and not scratch.exists() and scratch.parent.is_dir()


def test_a_writer_that_is_ended_with_the_sending_process_leaves_no_folder(
    interpreter: Callable[[str], str], own_sending: Sender, tmp_path: Path
) -> None:
    waiting = interpreter(f'[ "$2" = look ] && exit 0; echo $TMPDIR > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/where; sleep 600\n')
    own_sending.begin(settings(python=waiting, tensorboard=f"{tmp_path}/events").receivers[0], Message(1, "", "info", "test", "body", 0.0))
    end = time.monotonic() + WAIT
    while not (tmp_path / "where").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    own_sending.end()
    assert not Path((tmp_path / "where").read_text().strip()).exists()


@pytest.mark.parametrize(("text", "said"), [
    ("MlflowException: API request to http://h failed with exception Max retries exceeded (Caused by ResponseError('too many 500 error"
     " responses'))", "the server answers with 500"),
    ("API request to endpoint /x failed with error code 302 != 200. Response body: ''", "the server answers with 302: it refers to"),
    ("API request to endpoint /x failed with error code 401 != 200. Response body: ''", "the server does not let ckptd in (401): key_file"),
    ("No API key configured. Use `wandb login` to log in.", "the server does not let ckptd in: key_file has no key"),
    ("Max retries exceeded: [Errno 111] Connection refused'))", "the server does not answer: Connection refused"),
    ("HTTPConnectionPool(host='h', port=80): Read timed out. (read timeout=15)", "the server does not answer: no answer in time"),
])  # fmt: skip
def test_an_error_is_said_by_what_it_means(text: str, said: str) -> None:
    assert writer._sentence(RuntimeError(text)).startswith(said)


@pytest.mark.parametrize(("text", "refused"), [
    ("failed with error code 400 != 200", True), ("failed with error code 413 != 200", True), ("error code 404 != 200", False),
    ("error code 429 != 200", False), ("too many 503 error responses", False), ("Python int too large to convert to SQLite INTEGER", True),
])  # fmt: skip
def test_an_export_is_refused_where_another_attempt_is_in_vain(text: str, refused: bool) -> None:
    assert writer._is_refusal(RuntimeError(text)) is refused


def test_what_a_writer_knows_is_not_shown() -> None:
    said = "no way by someone:pr0xyword@proxy.lan with k3y-of-the-server; PLAIN stays, so does 127.0.0.1 " + "x" * 500
    shown = delivery.masked(
        said, ["https://mlflow.lan/S3CRETplace", "k3y-of-the-server", "PLAIN", "http://someone:pr0xyword@proxy.lan:3128"]
    )
    assert "pr0xyword" not in shown and "k3y" not in shown and "PLAIN stays" in shown and len(shown) <= 400
    assert delivery._HARMLESS.fullmatch("WANDB_MODE") and not delivery._HARMLESS.fullmatch("MLFLOW_TRACKING_AWS_SIGV4")


def test_a_test_makes_nothing_and_says_what_is_in_the_way(interpreter: Callable[[str], str], own_sending: Sender, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "text.db").write_text("no database " * 100)
    python, test = interpreter("exit 0\n"), Message(1, "", "info", "test", "body", 0.0)
    before = {*tmp_path.rglob("*")}
    said = {
        "tensorboard": {f"{tmp_path}/new/events": None, f"{tmp_path}/link/events": "is a file, or a link that leads nowhere"},
        "mlflow": {f"sqlite:///{tmp_path}/new/store.db": None, f"sqlite:///{tmp_path}/text.db": "can't be read as a database"},
    }
    for kind, value, expected in ((kind, value, expected) for kind, values in said.items() for value, expected in values.items()):
        table: Any = {"name": "it", kind: value, "python": python}
        attempt = own_sending.begin(NotifySettings(targets=(table,)).with_file().receivers[0], test)
        while (outcome := attempt.poll()) is None:
            time.sleep(0.01)
        assert outcome.error is None if expected is None else expected in (outcome.error or ""), (value, outcome)
    assert {*tmp_path.rglob("*")} == before


def test_runs_of_the_same_name_in_two_roots_have_folders_of_their_own(tmp_path: Path) -> None:
    def place(key: str) -> str:
        return writer._place(str(tmp_path), {"place": "llama", "run_key": key})

    assert [os.path.basename(place(key)) for key in ("aaaaaaaa", "bbbbbbbb", "aaaaaaaa")] == ["llama", "llama~bbbbbb", "llama"]


@pytest.mark.parametrize(("table", "said"), [
    ('tensorboard = "{0}/runs/events"', "lies in watch.roots, which is for other files"),
    ('tensorboard = "{0}/out"', "lies in output.directory, which is for other files"),
    ('mlflow = "sqlite:///{0}/state/mlflow.db"', "lies in state.directory, which is for other files"),
    ('wandb = "p"\nfolder = "{0}/file/below"', "is a file, or a link that leads nowhere; give a folder"),
    ('mlflow = "/m"\nmodel = "m"\nvariant = "onyx"', 'variant = "onyx" is not in export.variants'),
])  # fmt: skip
def test_check_says_what_is_wrong_with_a_place_or_a_variant(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").write_text("")
    places = '[watch]\nroots = ["{0}/runs"]\n[output]\ndirectory = "{0}/out"\n[state]\ndirectory = "{0}/state"\n'
    file = tmp_path / "config.toml"
    file.write_text((places + '[[notify.targets]]\nname = "x"\n' + table + "\n").format(tmp_path))
    diagnosis = examine(load(file), file)
    assert any(said in line for line in (*diagnosis.problems, *diagnosis.warnings)), diagnosis
    assert not (tmp_path / "out").exists()
