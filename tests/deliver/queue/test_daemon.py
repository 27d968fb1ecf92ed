"""Deliveries of a real daemon: entered with the end of a job, carried, changed with the configuration, over restarts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from daemon.contract.disk.export_layout import manifest_of
from daemon.journal.file.opening import reading
from daemon.journal.shipment_rows import ShipmentRow, deliveries, shipments_of
from daemon.operating.monitoring.deliveries import DeliveryStatus
from daemon.operating.monitoring.status import snapshot
from tests.cli.test_bad_input import ckptd
from tests.runner.conftest import ROOT, Toy

Make = Callable[..., Toy]
Add = Callable[..., Path]
PROGRAM = """
import json, os, sys
told = json.load(sys.stdin)
if os.path.exists(sys.argv[1] + ".closed"):
    sys.exit(75)
with open(sys.argv[1], "a") as file:
    file.write(told["run"] + " " + str(told["step"]) + " " + told["move"] + "\\n")
print("place of " + told["version"])
"""


def targets(folder: Path, *names: str, more: str = "") -> str:
    """Tables of `[[deliver]]` whose program writes what it got into `folder/NAME`."""
    (folder / "program.py").write_text(PROGRAM)
    table = '\n[[deliver]]\nname = "{name}"\nkind = "command"\ncommand = ["{python}", "{program}", "{file}"]\n{more}\n'
    return "".join(
        table.format(name=name, python=sys.executable, program=folder / "program.py", file=folder / name, more=more) for name in names
    )


def arrived(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


def rows(toy: Toy) -> dict[tuple[int, str], ShipmentRow]:
    if not (toy.state / "journal.sqlite3").exists():
        return {}
    with reading(toy.state / "journal.sqlite3") as connection:
        jobs = [str(row[0]) for row in connection.execute("SELECT id FROM job")]
        return {(row.step, row.target): row for job in jobs for row in shipments_of(connection, job)}


def wait(condition: Callable[[], bool], toy: Toy, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, toy.log()[-4000:]
        time.sleep(0.1)


def test_what_is_exported_is_delivered_and_nothing_old_goes_to_a_target_that_is_added(make_toy: Make, add: Add, tmp_path: Path) -> None:
    toy = make_toy(extra=targets(tmp_path, "first"))
    add(toy, step=4)
    toy.start()
    wait(lambda: arrived(tmp_path, "first") == ["run 4 move"], toy)
    wait(lambda: rows(toy)[4, "first"].state == "delivered", toy)
    receipt = rows(toy)[4, "first"].receipt
    assert receipt is not None and receipt.place == f"place of {receipt.version}" and receipt.version.startswith("run-4-")
    toy.config.write_text(toy.config.read_text() + targets(tmp_path, "second"))
    assert toy.process is not None
    toy.process.send_signal(signal.SIGHUP)
    wait(lambda: "deliver.second: added" in toy.log(), toy)
    add(toy, step=8)
    wait(lambda: arrived(tmp_path, "second") == ["run 8 move"] and arrived(tmp_path, "first") == ["run 4 move", "run 8 move"], toy)
    assert toy.stop() == 0
    assert (4, "second") not in rows(toy)


def test_an_export_that_waits_to_be_delivered_outlives_retention_and_restarts(make_toy: Make, add: Add, tmp_path: Path) -> None:
    (tmp_path / "far.closed").touch()
    toy = make_toy(extra=targets(tmp_path, "far") + "\n[retention]\nkeep_last = 1\n")
    add(toy, step=4)
    toy.start()
    wait(lambda: (4, "far") in rows(toy) and rows(toy)[4, "far"].failures > 0, toy)
    toy.kill()
    add(toy, step=8)
    toy.start()
    toy.wait_ended(2)
    assert manifest_of(toy.exports / "run" / "step-4"), "it is still to be delivered"
    (tmp_path / "far.closed").unlink()
    assert toy.stop() == 0
    toy.start()
    wait(lambda: arrived(tmp_path, "far") == ["run 4 move", "run 8 move"], toy)
    add(toy, step=12)
    toy.wait_ended(3)
    wait(lambda: not (toy.exports / "run" / "step-4").exists(), toy)
    assert toy.stop() == 0


def test_how_far_a_delivery_is_is_said_while_it_runs(make_toy: Make, add: Add, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    slow = f'\n[[deliver]]\nname = "slow"\nkind = "store"\nurl = "file://{tmp_path}/far"\nbandwidth = 4000\n'
    toy = make_toy(extra=slow)
    add(toy, step=4)
    toy.start()

    def now() -> DeliveryStatus | None:
        return next((delivery for job in snapshot(toy.state).jobs for delivery in job.deliveries), None)

    wait(lambda: (seen := now()) is not None and (seen.fraction or 0) > 0 and seen.sent > 0 and seen.doing == "sending", toy)
    job = snapshot(toy.state).jobs[0].id
    for verb in (["show", job], ["list"], ["status"]):
        said = ckptd(tmp_path, *verb, "--config", toy.config).stdout
        assert "to slow: sending " in said and " sent" in said, said
    assert toy.stop() == 0
    seen = now()
    assert seen is not None and (seen.state, seen.fraction, seen.doing) == ("waiting", None, None)


def test_what_waits_for_a_target_that_leaves_is_dropped_also_where_it_was_the_last(make_toy: Make, add: Add, tmp_path: Path) -> None:
    (tmp_path / "far.closed").touch()
    toy = make_toy()
    before = toy.config.read_text()
    toy.config.write_text(before + targets(tmp_path, "far"))
    add(toy, step=4)
    toy.start()
    wait(lambda: (4, "far") in rows(toy) and rows(toy)[4, "far"].failures > 0, toy)
    assert toy.stop() == 0
    toy.config.write_text(before)
    toy.start()
    wait(lambda: rows(toy)[4, "far"].state == "dropped", toy)
    assert toy.stop() == 0
    with reading(toy.state / "journal.sqlite3") as connection:
        assert [(target.target, dict(target.counts)) for target in deliveries(connection)] == [("far", {"dropped": 1})]


def test_a_delivery_that_a_rebuilt_journal_has_lost_is_entered_again(make_toy: Make, add: Add, tmp_path: Path) -> None:
    toy = make_toy(extra=targets(tmp_path, "far"))
    toy.start()
    wait(lambda: toy.status()["daemon"]["running"], toy)
    assert toy.stop() == 0
    backup = (toy.state / "journal.sqlite3").read_bytes()  # it knows the target, and no job
    add(toy, step=4)
    toy.start()
    wait(lambda: arrived(tmp_path, "far") == ["run 4 move"], toy)
    wait(lambda: rows(toy)[4, "far"].state == "delivered", toy)
    assert toy.stop() == 0
    for old in (toy.state / "backups").glob("*"):
        old.unlink()
    (toy.state / "backups").mkdir(exist_ok=True)
    (toy.state / "backups" / "journal-20260101T000000.000000Z.sqlite3").write_bytes(backup)
    (toy.state / "journal.sqlite3").write_bytes(b"no database")
    toy.start()
    wait(lambda: arrived(tmp_path, "far") == ["run 4 move", "run 4 move"], toy)
    wait(lambda: rows(toy)[4, "far"].state == "delivered", toy)
    assert toy.stop() == 0


def test_a_daemon_that_delivers_nothing_loads_nothing_of_it() -> None:
    script = "import sys, daemon.operating.service as s; print(sorted(m for m in sys.modules if m.startswith('daemon.delivering')))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []
