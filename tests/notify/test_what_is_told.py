"""What a message says, whom it is for, and that a condition is told as it begins and as it is over, not again in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.config.loading import load
from daemon.config.notify import NotifySettings
from daemon.contract.disk.files import seal
from daemon.contract.faults.errors import CkptdError, Fault, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, Outcome, StageResult, Verdict
from daemon.journal.journal import Journal
from daemon.journal.outbox import Target, wants
from daemon.journal.overview import JournalCare
from daemon.journal.rows import JobRow, Message, Notice
from daemon.operating.announcements import Announcements
from daemon.operating.daily import Daily, last_time
from daemon.operating.last_end import LastEnd
from daemon.operating.monitoring.live import Condition
from daemon.operating.well_being import WellBeing
from daemon.publishing.telling.content import payload
from daemon.system.filesystems.disks import Shortage
from daemon.system.processes.threads import Death
from tests.publish.two import Daemon
from tests.runner.conftest import Toy

ALL = '"found", "succeeded", "partial", "failed", "rejected", "stuck", "disk_low", "daemon_unwell", "recovered", "digest"'


def rows(journal: Journal) -> list[Message]:
    return [
        Message(row["id"], row["job"], row["kind"], row["title"], row["body"], 0, json.loads(row["about"]))
        for row in journal.database.read("SELECT * FROM outbox ORDER BY id")
    ]


class Exports(Daemon):
    """A daemon that tells everything, whose exports have reports."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, home / "out")
        notify = NotifySettings.model_validate({"urls": ["json://h"], "on": json.loads(f"[{ALL}]")})
        self.settings = self.settings.model_copy(update={"notify": notify})
        self.journal.outbox.adopt([Target("a", "notify.urls.0")])

    def ends(self, step: int, *, rejected: tuple[str, ...] = (), broken: str | None = None, best: str | None = "onnx") -> JobRow:
        """An export that ends with these artifacts rejected, and with this stage failed."""
        job = self.take("llama", step, root="/root")
        for name in self.journal.stages.of(job.id):
            if name == broken:
                fault = Fault(code=FaultCode.UNEXPECTED, operation="trace the model", cause="it broke", remedy="mend it")
                self.journal.stages.end(job.id, name, "failed", fault)
                continue
            if broken and name.removeprefix("check-").startswith(broken) and name != broken:
                self.journal.stages.end(job.id, name, "skipped", None)
                continue
            folder = self.paths.staging / job.id / f"{name}.1"
            folder.mkdir(parents=True)
            variant = {"merged": "pytorch"}.get(name, name.removeprefix("check-"))
            (folder / "file").write_text(f"{name} of {job.id}")
            if name == "report":
                (folder / "report.json").write_text(json.dumps({
                    "artifacts": [
                        {"variant": each, "verdict": "failed" if each in rejected else "passed", "size_bytes": size,
                         "figures": {"agreement": 0.998}}
                        for each, size in (("pytorch", 4 << 30), ("onnx", 2 << 30), ("onnx-int8", 1 << 30))
                    ],
                    "recommendation": {"best": {"variant": best} if best else None},
                }))  # fmt: skip
            verdict = Verdict.FAILED if variant in rejected else Verdict.PASSED
            why = ("it differs too much",) if variant in rejected else ()
            checks = (
                (ArtifactCheck(variant=variant, verdict=verdict, reasons=why),) if name == "merged" or name.startswith("check-") else ()
            )
            self.journal.stages.reuse(
                job.id, name, "key", folder, StageResult(outcome=Outcome.SUCCEEDED, files=seal(folder), checks=checks)
            )
        return self.end(job)


def test_a_message_of_an_export_names_run_verdict_best_artifact_and_what_to_do(tmp_path: Path) -> None:
    exports = Exports(tmp_path)
    job = exports.ends(4, rejected=("onnx-int8",))
    (message,) = rows(exports.journal)
    lines = message.body.splitlines()
    assert (message.kind, message.title) == ("partial", "llama step 4: partial")
    assert lines[0] == "partial: 2 of 3 artifacts passed their checks; rejected: onnx-int8"
    assert lines[1] == f"Best: onnx (2.00 GiB, agreement 99.8 %): {job.target}/onnx"
    assert "onnx-int8: failed (it differs too much)" in lines and lines[-1] == f"Export: {job.target}"
    data = json.loads(payload(message))["data"]
    assert data["events"] == ["partial", "rejected"] and data["rejected"] == ["onnx-int8"] and data["link"] is None
    assert data["artifact"] == {"variant": "onnx", "path": f"{job.target}/onnx", "bytes": 2 << 30, "agreement": 0.998}
    assert (data["run"], data["step"], data["job"], data["target"]) == ("llama", 4, job.id, str(job.target))


def test_without_a_recommendation_the_smallest_that_passed_is_named_and_none_that_was_rejected(tmp_path: Path) -> None:
    exports = Exports(tmp_path)
    job = exports.ends(4, rejected=("onnx-int8",), best=None)
    assert f"Best: onnx (2.00 GiB, agreement 99.8 %): {job.target}/onnx" in rows(exports.journal)[0].body


def test_a_failure_comes_with_its_reason_and_the_command_for_afterwards(tmp_path: Path) -> None:
    exports = Exports(tmp_path)
    (tmp_path / "config.toml").write_text('[page]\nurl = "https://box.example.org/"\n')
    exports.settings = exports.settings.model_copy(update={"page": load(tmp_path / "config.toml").page})
    job = exports.ends(4, broken="onnx")
    (message,) = rows(exports.journal)
    assert message.kind == "partial" and "it broke" in message.body
    assert message.about["events"] == ["partial"] and message.about["rejected"] == [], "no check kept what was not made"
    assert f"When the cause is gone: ckptd queue retry {job.id}" in message.body.splitlines()
    assert message.body.splitlines()[-1] == message.about["link"] == f"https://box.example.org/jobs/{job.id}"
    assert message.about["remedy"] == f"ckptd queue retry {job.id}"


@pytest.mark.parametrize(
    ("wanted", "events", "run", "told"),
    [
        ({"on": ["rejected"], "runs": []}, ("partial", "rejected"), "a", True), ({"on": ["rejected"]}, ("partial",), "a", False),
        ({"on": ["failed"], "runs": ["prod-*"]}, ("failed",), "prod-1", True),
        ({"on": ["failed"], "runs": ["prod-*"]}, ("failed",), "x", False),
        ({"on": ["disk_low"], "runs": ["prod-*"]}, ("disk_low",), None, True),
        ({}, ("failed",), "x", True), ({"on": []}, ("failed",), None, False),
    ],
)  # fmt: skip
def test_a_target_is_told_of_its_events_and_its_runs(wanted: dict[str, Any], events: tuple[str, ...], run: str | None, told: bool) -> None:
    assert wants(json.dumps(wanted), events, run) is told


def test_a_message_that_no_target_wants_leaves_nothing(journal: Journal) -> None:
    journal.outbox.announce("before", Notice("digest", "a", "b"))
    journal.outbox.adopt([Target("a", "notify.urls.0", json.dumps({"on": ["failed"]}))])
    assert rows(journal) == [], "it had been entered before the targets were known"
    journal.outbox.announce("after", Notice("digest", "a", "b"))
    assert rows(journal) == []


class Told:
    """A notifier that keeps what it is to send without the journal."""

    def __init__(self) -> None:
        self.untold: list[Notice] = []

    def tell(self, notice: Notice) -> None:
        self.untold.append(notice)

    def wake(self) -> None:
        return


def announcements(tmp_path: Path, journal: Journal, on: str = ALL) -> tuple[Announcements, Told]:
    exports = Daemon(tmp_path, tmp_path / "out")
    notify = NotifySettings.model_validate({"urls": ["json://h"], "on": json.loads(f"[{on}]")})
    settings, told = exports.settings.model_copy(update={"notify": notify}), Told()
    return Announcements(journal, told, lambda: settings), told  # type: ignore[arg-type]


def kinds(journal: Journal) -> list[tuple[str, str]]:
    return [(message.kind, message.title) for message in rows(journal)]


AWAY = Fault(code=FaultCode.UNEXPECTED, operation="find BASE", cause="it is not there", remedy="mount it", path="/mnt/base")
FULL = Shortage("/data", ("output.directory",), 1, 2)


def test_each_condition_is_told_as_it_begins_and_as_it_is_over_also_over_restarts(journal: Journal, tmp_path: Path) -> None:
    for _ in range(2):
        telling, _told = announcements(tmp_path / "a", journal)
        for over in (False, False):
            telling.tell_away(AWAY, over)
            telling.tell_disk(FULL, over)
            telling.tell_unwell(("The thread watch does not run.",), over)
            telling.tell_stuck("nothing goes on", over)
    begun = kinds(journal)
    assert begun == [
        ("stuck", "ckptd: exports wait for /mnt/base"), ("disk_low", "ckptd: not enough disk space on /data"),
        ("daemon_unwell", "ckptd is not well"), ("stuck", "ckptd: exports make no progress"),
    ]  # fmt: skip
    for _ in range(2):
        telling.tell_away(AWAY, True)
        telling.tell_disk(FULL, True)
        telling.tell_unwell((), True)
        telling.tell_stuck("", True)
    assert [kind for kind, _ in kinds(journal)[4:]] == ["recovered"] * 4
    telling.tell_disk(FULL, False)
    assert kinds(journal)[8:] == [("disk_low", "ckptd: not enough disk space on /data")], "it changed again"
    subjects = [message.about["subject"] for message in rows(journal)]
    assert subjects[:4] == subjects[4:8], "the end names what its beginning named"


def test_what_ends_a_daemon_and_a_damaged_journal_are_told_once_each(journal: Journal, tmp_path: Path) -> None:
    telling, _ = announcements(tmp_path, journal, on='"failed", "daemon_unwell"')
    for _ in range(2):
        telling.tell_rebuilding(JournalCare(None, None, None, {"token": "1", "set_aside": "x", "from": "disk", "why": "y"}))
        telling.tell_last_end(LastEnd("2026-01-01T00:00:00+00:00", "The thread runner died."))
        telling.tell_last_end(None)
    assert kinds(journal) == [("daemon_unwell", "ckptd: the journal was damaged"), ("daemon_unwell", "ckptd ended by itself")]
    assert rows(journal)[0].about["events"] == ["daemon_unwell", "failed"]


def test_while_the_journal_can_not_be_written_a_condition_is_told_once_without_it(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling, told = announcements(tmp_path, journal)

    def full(*_: object) -> None:
        raise Retryable(FaultCode.JOURNAL_UNAVAILABLE, "write", "the disk is full", "free space")

    with monkeypatch.context() as patch:
        patch.setattr(journal.outbox, "changed", full)
        for over in (False, False, True, True):
            telling.tell_disk(FULL, over)
    assert [notice.kind for notice in told.untold] == ["disk_low", "recovered"]
    assert issubclass(Retryable, CkptdError)


def test_only_what_lasts_is_told_of_how_the_daemon_is_and_signs_of_life_stop_meanwhile(journal: Journal, tmp_path: Path) -> None:
    telling, _ = announcements(tmp_path, journal)
    clock, stuck = [0.0], [""]
    being = WellBeing(telling, lambda: stuck[0], clock=lambda: clock[0])

    def look(seconds: float, *unwell: str, deaths: tuple[Death, ...] = ()) -> tuple[int, bool]:
        for _ in range(int(seconds / 10)):
            clock[0] += 10.0
            being.look(Condition("unwell" if unwell else "healthy", unwell, deaths=deaths))
        return len(rows(journal)), being.is_well()

    assert look(600) == (0, True)
    assert look(50, "It hangs (for 50 s).") == (0, True) and look(600) == (0, True), "a moment's trouble"
    assert look(80, "It hangs (for 80 s).") == (1, False) and look(600, "It hangs (for 680 s).") == (1, False)
    assert look(50) == (1, False) and look(10, "It hangs.") == (1, False) and look(80) == (2, True)
    died = Death("watch", "2026-01-01T00:00:00+00:00", "an error", 1)
    assert look(300, deaths=(died,)) == (3, True)
    stuck[0] = "For 6 h nothing has gone on."
    assert look(300, deaths=(died,)) == (4, True)
    stuck[0] = ""
    assert look(300, deaths=(died,)) == (5, True)
    clock[0] += 200.0
    assert not being.is_well(), "nobody has looked for minutes"
    assert [kind for kind, _ in kinds(journal)] == ["daemon_unwell", "recovered", "daemon_unwell", "stuck", "recovered"]


def test_a_clock_that_was_years_ahead_delays_no_digest(journal: Journal) -> None:
    now = datetime.now().astimezone()
    clock = [now.replace(year=now.year + 70, day=1)]
    daily = Daily(journal, lambda: None, lambda: clock[0])
    daily.tick("08:00")
    clock[0] = now
    daily.tick("08:00")
    assert rows(journal) == []
    clock[0] += timedelta(days=1, minutes=1)
    daily.tick("08:00")
    assert [message.kind for message in rows(journal)] == ["digest"]


def test_a_digest_comes_once_a_day_with_what_ended_since_the_last(tmp_path: Path) -> None:
    exports = Exports(tmp_path)
    clock = [datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)]
    daily = Daily(exports.journal, lambda: None, lambda: clock[0])
    daily.tick("08:00")
    assert rows(exports.journal) == [], "it begins with this moment"
    job = exports.ends(4, rejected=("onnx-int8",))
    exports.ends(8)
    exports.journal.database.write(
        "x", lambda c: c.execute("UPDATE job SET ended = ?", ((clock[0] + timedelta(hours=1)).astimezone(UTC).isoformat(),))
    )
    clock[0] += timedelta(hours=19, minutes=59)
    daily.tick("08:00")
    assert [kind for kind, _ in kinds(exports.journal)] == ["partial", "succeeded"]
    clock[0] += timedelta(minutes=1)
    for _ in range(3):
        daily.tick("08:00")
        clock[0] += timedelta(hours=1)
    (digest,) = rows(exports.journal)[2:]
    assert (digest.kind, digest.title) == ("digest", "ckptd, the last day: 1 partial, 1 succeeded")
    assert digest.about["counts"] == {"partial": 1, "succeeded": 1, "open": 0}
    assert f"llama: onnx (2.00 GiB, agreement 99.8 %): {job.target.parent}/step-8/onnx" in digest.body
    clock[0] += timedelta(days=3)
    daily.tick("08:00")
    daily.tick("08:00")
    assert [message.title for message in rows(exports.journal)[3:]] == ["ckptd, the last day: no export ended"]


def test_the_time_of_the_digest_is_that_of_the_wall_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for day in ("2026-03-29", "2026-10-25"):
            noon = datetime.fromisoformat(f"{day} 12:00").astimezone()
            assert last_time("08:00", noon) == datetime.fromisoformat(f"{day} 08:00").astimezone()
            before = datetime.fromisoformat(f"{day} 07:00").astimezone()
            assert (before - last_time("08:00", before)) == timedelta(hours=22 if day == "2026-03-29" else 24)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.slow
def test_a_daemon_tells_a_command_of_what_it_takes_and_makes(
    make_toy: Callable[..., Toy], add: Callable[..., Path], tmp_path: Path
) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\n{{ cat; echo; }} >> {tmp_path}/told-$1\n")
    hook.chmod(0o755)
    toy = make_toy(extra=(
        f'[[notify.targets]]\nname = "all"\ncommand = ["{hook}", "all"]\non = [{ALL}]\n'
        f'[[notify.targets]]\nname = "others"\ncommand = ["{hook}", "others"]\nruns = ["another-*"]\n'
    ))  # fmt: skip
    add(toy)
    toy.start()
    (job,) = toy.wait_ended()
    toy.wait_for(lambda value: value["outbox"] == {"delivered": 2}, 60)
    assert toy.stop() == 0
    told = [json.loads(line) for line in (tmp_path / "told-all").read_text().splitlines()]
    assert [(message["type"], message["data"]["job"]) for message in told] == [("found", job["id"]), ("succeeded", job["id"])]
    assert not (tmp_path / "told-others").exists()


def test_a_daemon_that_was_killed_is_told_once_by_the_next_and_one_that_was_stopped_not(
    make_toy: Callable[..., Toy], tmp_path: Path
) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\n{{ cat; echo; }} >> {tmp_path}/told\n")
    hook.chmod(0o755)
    service = make_toy(extra=f'[[notify.targets]]\nname = "all"\ncommand = ["{hook}"]\non = ["daemon_unwell"]\n')

    def started() -> None:
        service.start()
        service.wait_for(lambda status: service.process and status["daemon"]["pid"] == service.process.pid, 20)

    started()
    assert service.stop() == 0
    started()
    service.kill()
    for _ in range(2):
        started()
        service.wait_for(lambda status: status["outbox"] == {"delivered": 1}, 60)
        assert service.stop() == 0
    (told,) = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert (told["type"], told["data"]["title"]) == ("daemon_unwell", "ckptd did not shut down cleanly")
