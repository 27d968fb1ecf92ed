"""The contract over a real sshd, and what goes wrong there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.contract.delivering.orders import End, Order
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.rsync.connection import Connection, error_of
from handlers.deliver.rsync.target import Rsync
from handlers.deliver.target import Resume, Setting
from handlers.deliver.transfer import Transfer
from tests.deliver.contract.bench import Bench, started
from tests.deliver.contract.checks import CHECKS, Check
from tests.deliver.packages import unpacked
from tests.deliver.rsync.machine import Machine, fetch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(fetch, tmp_path_factory.getbasetemp().parent / "ssh-packages", "sshd and rsync")


@pytest.fixture
def bench(tmp_path: Path, tree: Path) -> Iterator[Bench]:
    with started(Machine, tmp_path, tree=tree) as made:
        yield made


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.over_http], ids=lambda check: check.name)
def test_the_contract_holds(bench: Bench, check: Check) -> None:
    check.call(bench)


def test_a_machine_whose_key_is_not_known_or_another_is_refused(bench: Bench) -> None:
    (known := bench.site.folder / "known").write_text("")
    end = bench.deliver(bench.export(), action="look").end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED and "known_hosts" in end.fault.remedy
    known.write_text(f"[127.0.0.1]:{machine(bench).port} {(bench.site.folder / 'key.pub').read_text()}")
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED
    assert not bench.site.visible("run-a")


def test_a_key_without_rights_is_refused(bench: Bench) -> None:
    bench.site.secret = (bench.site.folder / "host").read_text()
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED and "Permission denied" in end.fault.cause


def test_the_key_is_on_no_disk_and_no_command_line(bench: Bench, tmp_path: Path) -> None:
    line = bench.site.secret.splitlines()[2]
    delivery = bench.start(bench.export(files={"pytorch/model.safetensors": 40 << 20}), bandwidth=20 << 20)
    seen = set()
    while delivery.process.poll() is None:
        for process in psutil.process_iter(["name", "cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            assert line not in words
            if str(bench.site.folder) in words:
                seen.add(process.info["name"])
        for path in (tmp_path / "scratch").rglob("*"):
            with contextlib.suppress(OSError):
                assert not path.is_file() or line not in path.read_text(errors="replace"), path
    assert delivery.receipt and {"ssh", "rsync"} <= seen


def machine(bench: Bench) -> Machine:
    assert isinstance(bench.site, Machine)
    return bench.site


def test_a_cut_in_the_midst_goes_on_where_it_was(bench: Bench) -> None:
    export = bench.export(files={"pytorch/model.safetensors": 24 << 20})
    delivery = bench.start(export, bandwidth=6 << 20)
    parts = machine(bench).models / ".ckptd/parts"
    while not any(path.stat().st_size > 6 << 20 for path in (parts.glob("*") if parts.is_dir() else ())):
        assert delivery.process.poll() is None
        time.sleep(0.02)
    machine(bench).cut()
    assert delivery.end.fault and not delivery.end.permanent and delivery.end.fault.code == FaultCode.DELIVERY_FAR_END
    machine(bench).listen()
    receipt = bench.deliver(export, resume=delivery.notes).receipt
    assert receipt.there > 6 << 20 and receipt.sent <= export.size - receipt.there + (1 << 20)
    bench.assert_whole(export)


def test_a_full_disk_and_a_folder_without_rights_are_told_apart() -> None:
    full = error_of("send", b'rsync: write failed on "x": No space left on device (28)\nrsync error: error in file IO (code 11)', "", "x")
    assert full.fault.code == FaultCode.DELIVERY_FULL and "No space left" in full.fault.cause
    assert error_of("send", b"mkdir: cannot create directory 'x': Permission denied\n", "", "x").fault.code == FaultCode.DELIVERY_REFUSED


def test_a_file_that_was_damaged_or_removed_there_is_put_again(bench: Bench) -> None:
    export = bench.export()
    version = bench.deliver(export).receipt.version
    path = machine(bench).models / version / "pytorch/model.safetensors"
    data = path.read_bytes()
    for harm in (lambda: path.write_bytes(b"x" * len(data)), lambda: path.write_bytes(b"x"), path.unlink, lambda: _replaced(path)):
        harm()
        assert bench.deliver(export).receipt.version == version and path.read_bytes() == data
        bench.assert_whole(export)


def _replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"another")


def test_what_is_taken_away_before_it_is_followed_is_made_again(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = bench.export(100), bench.export(200)
    bench.deliver(first)
    run, removed = Connection.run, list[End]()

    def interrupted(self: Connection, operation: str, *rest: Any) -> Any:
        if operation == "move latest.json" and not removed:
            (name,) = (row.version for row in bench.listed("run-a") if row.step == 200)
            removed.append(bench.remove(name))
        return run(self, operation, *rest)

    monkeypatch.setattr(Connection, "run", interrupted)
    for name, value in bench.site.variables.items():
        monkeypatch.setenv(name, value)
    (scratch := tmp_path / "here").mkdir()
    target = Rsync(Setting(bench.site.options(), bench.site.secret, scratch, Resume(), run="run-a"))
    order = Order(kind="rsync", entry="-", name="tried", options={}, export=str(second.folder))
    with contextlib.closing(target):
        receipt = Transfer(order, target, lambda said: None, sleep=lambda seconds: None).deliver()
    assert removed[0].fault is None and receipt.moved
    assert bench.site.current("run-a") == receipt.version and receipt.version in bench.site.visible("run-a")
    bench.assert_whole(first, second)
