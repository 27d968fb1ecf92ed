"""Machines that share a state directory and not its locks: one daemon works with it, and one that was suspended does not go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.verbs import run_program, start_talking

MACHINE = """
import fcntl, sys
fcntl.flock = lambda *call: None  # as on NFS with `nolock`: each machine has locks of its own
name = sys.argv[1]
host, _, boot = name.partition("@")  # the machine's name, and which of its boots it is
import daemon.system.lease as lease
for module in [module for known, module in sys.modules.items() if known.startswith("daemon.")]:
    for function, value in (("host_name", host), ("boot_id", name), ("machine_id", f"id of {host}")):
        if hasattr(module, function):
            setattr(module, function, lambda value=value: value)
lease.TOUCH_SECONDS, lease.FRESH_SECONDS, lease.SILENT_SECONDS = 0.2, 0.6, 2.0
"""
HOLD = (
    MACHINE
    + """
from pathlib import Path
from daemon.contract.faults.errors import UsageError
from daemon.journal.journal import Journal
from tests.journal.entries import enter, reference
state, step = Path(sys.argv[2]), 0
try:
    with lease.leased(state):
        journal = Journal(state / "journal.sqlite3")
        print("holds", flush=True)
        for line in sys.stdin:
            step += 1
            enter(journal, f"{sys.argv[1]}-{step}", reference(step, run=sys.argv[1], digest=f"{sys.argv[1]}-{step}"))
            print("entered", flush=True)
except UsageError as error:
    print(error, flush=True)
"""
)
PATIENT = HOLD.replace("SILENT_SECONDS = 0.2, 0.6, 2.0", "SILENT_SECONDS = 0.2, 0.6, 1000.0")
assert PATIENT != HOLD
SERVE = (
    MACHINE
    + """
sys.argv = ["ckptd", "run", "--config", sys.argv[2]]
from daemon.cli.main import main
sys.exit(main())
"""
)


@contextmanager
def machine(name: str, place: Path, program: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    process = start_talking(program, name, place)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], word: str) -> str:
    """The first line that has this word. Fails where the process ends without it."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return line
    raise AssertionError(lines)


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_second_machine_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with machine("first", tmp_path) as first, machine("second", tmp_path) as second:
        holders = {said(process, "") for process in (first, second)}
        assert "holds\n" in holders
        (refusal,) = holders - {"holds\n"}
        assert "a ckptd on another machine uses it (pid " in refusal and "stop that one" in refusal


def test_a_machine_that_died_is_followed_after_its_silence_and_after_an_end_in_order_at_once(tmp_path: Path) -> None:
    with machine("first", tmp_path) as first:
        said(first, "holds")
        first.kill()
        first.wait()
        with machine("second", tmp_path) as second:
            assert "gives no sign of life (pid" in said(second, "lease.taken")
            said(second, "holds")
            second.communicate()
        assert not (tmp_path / "lease.json").exists()


def last_touched_before_this_boot(state: Path) -> None:
    before = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 5
    os.utime(state / "lease.json", (before, before))


def killed(name: str, state: Path) -> None:
    with machine(name, state) as process:
        said(process, "holds")


def test_a_machine_that_has_booted_again_starts_at_once(tmp_path: Path) -> None:
    killed("box@1", tmp_path)
    last_touched_before_this_boot(tmp_path)
    with machine("box@2", tmp_path, PATIENT) as again:
        assert said(again, "") == "holds\n"  # as after a kill: nothing is taken over from another one


@pytest.mark.parametrize(("name", "without"), [("other@2", ""), ("box@2", "machine"), ("box@2", "touched before")])
def test_what_may_be_another_machine_is_waited_for(name: str, without: str, tmp_path: Path) -> None:
    killed("box@1", tmp_path)
    lease = tmp_path / "lease.json"
    known = json.loads(lease.read_text())
    known.pop(without, None)  # of an older ckptd, or in a container
    lease.write_text(json.dumps(known))
    if without != "touched before":  # else a clone of the machine may have touched it meanwhile
        last_touched_before_this_boot(tmp_path)
    with machine(name, tmp_path) as second:
        assert "gives no sign of life (pid" in said(second, "lease.taken")
        said(second, "holds")


def test_a_clone_with_the_same_id_and_name_is_refused_while_the_other_one_lives(tmp_path: Path) -> None:
    with machine("box@1", tmp_path) as first, machine("box@2", tmp_path) as clone:
        holders = {said(process, "") for process in (first, clone)}
        assert "holds\n" in holders and any("a ckptd on another machine uses it" in line for line in holders)


def test_one_that_was_suspended_and_replaced_ends_before_it_writes(tmp_path: Path) -> None:
    with machine("first", tmp_path) as first:
        said(first, "holds")
        first.send_signal(signal.SIGSTOP)
        ask(first)
        with machine("second", tmp_path) as second:
            said(second, "holds")
            ask(second)
            said(second, "entered")
            first.send_signal(signal.SIGCONT)
            output, _ = first.communicate()
            assert first.returncode == 70 and "lease.lost" in output and "entered" not in output
            ask(second)
            said(second, "entered")
            second.communicate()
    from daemon.journal.journal import Journal

    journal = Journal(tmp_path / "journal.sqlite3")
    assert journal.jobs.open_ids() == {"second-1", "second-2"}
    journal.close()


def test_one_that_was_replaced_and_has_not_noticed_it_looks_before_it_writes(tmp_path: Path) -> None:
    with machine("first", tmp_path, UNAWARE) as first:
        said(first, "holds")
        with machine("second", tmp_path) as second:
            said(second, "holds")
            ask(first)
            output, _ = first.communicate()
            assert first.returncode == 70 and "lease.lost" in output and "entered" not in output
            second.communicate()


UNAWARE = HOLD.replace("SECONDS = 0.2, 0.6", "SECONDS = 1000.0, 0.6")
assert UNAWARE != HOLD
PUBLISH = (
    MACHINE.replace("SECONDS = 0.2, 0.6", "SECONDS = 1000.0, 0.6")
    + """
from pathlib import Path
from daemon.config.places.output_owners import record_of
from daemon.config.places.paths import prepare
from daemon.publishing.exchange.beneath import held_below
from daemon.publishing.exchange.owners import owned
from daemon.publishing.exchange.swap import swap
from tests.journal.entries import reference
state, output = Path(sys.argv[2]), Path(sys.argv[2]) / "exports"
paths = prepare(state, output)
(staged := paths.staging / "job" / "export").mkdir(parents=True)
with lease.leased(state), held_below(output, output / "run", make=True) as around:
    print("holds", flush=True)
    if sys.stdin.readline() == "owner\\n":
        with owned(around.spot(record_of("run")), reference(1), paths, staged.parent):
            print("published", flush=True)
    else:
        swap(staged, around.spot("step-1"), output, None)
        print("published", flush=True)
"""
)


@pytest.mark.parametrize("what", ["owner", "swap"])
@pytest.mark.parametrize("replaced", [True, False])
def test_one_that_was_replaced_and_has_not_noticed_it_looks_before_it_publishes(what: str, replaced: bool, tmp_path: Path) -> None:
    with machine("first", tmp_path, PUBLISH) as first:
        said(first, "holds")
        if replaced:
            with machine("second", tmp_path) as second:
                said(second, "holds")
                output, _ = first.communicate(f"{what}\n")
        else:
            output, _ = first.communicate(f"{what}\n")
    run = list((tmp_path / "exports" / "run").iterdir())
    assert (first.returncode, "lease.lost" in output, "published" in output, run != []) == (
        (70, True, False, False) if replaced else (0, False, True, True)
    )


def test_one_that_was_suspended_and_not_replaced_goes_on(tmp_path: Path) -> None:
    with machine("first", tmp_path) as first:
        said(first, "holds")
        first.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        ask(first)
        first.send_signal(signal.SIGCONT)
        said(first, "entered")


def test_a_lease_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    with machine("first", tmp_path) as first:
        said(first, "holds")
        (tmp_path / "lease.json").unlink()
        time.sleep(1.0)
        ask(first)
        said(first, "entered")
        assert json.loads((tmp_path / "lease.json").read_text())["host"] == "first"


RACE = (
    MACHINE
    + """
from pathlib import Path
from daemon.contract.faults.errors import UsageError
print("ready", flush=True)
for line in sys.stdin:
    try:
        with lease.leased(Path(line.strip())):
            print("holds", flush=True)
            sys.stdin.readline()
    except UsageError:
        print("refused", flush=True)
        sys.stdin.readline()
"""
)


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_of_machines_that_start_at_the_same_moment_exactly_one_has_it(rounds: int, tmp_path: Path) -> None:
    with machine("one", tmp_path, RACE) as one, machine("two", tmp_path, RACE) as two, ThreadPoolExecutor(2) as pool:
        for process in (one, two):
            said(process, "ready")
        for number in range(rounds):
            state = tmp_path / str(number)
            state.mkdir()
            if number % 2:  # one that is silent: both come to replace it
                (state / "lease.json").write_text('{"token": "x", "host": "dead", "boot": "dead", "pid": 1, "since": "then"}')
            for process in (one, two):
                assert process.stdin is not None
                process.stdin.write(f"{state}\n")
                process.stdin.flush()
            answers = sorted(pool.map(lambda process: next(line for line in process.stdout if "lease" not in line), (one, two)))
            assert answers == ["holds\n", "refused\n"], number
            for process in (one, two):
                ask(process)
            shutil.rmtree(state, ignore_errors=True)


VERBS = (
    MACHINE
    + """
import contextlib, io, json
from daemon.cli.main import main
answers, config = [], sys.argv[3]
for words in json.loads(sys.argv[2]):
    sys.argv = ["ckptd", *words, "--config", config]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main()
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""
)


def verbs(name: str, config: Path, *commands: str) -> list[tuple[int, str, str]]:
    """Commands on this machine, one after the other: (exit code, output, errors)."""
    words = json.dumps([command.split() for command in commands])
    return [(code, out, errors) for code, out, errors in json.loads(run_program(VERBS, name, words, config).stdout)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    file = tmp_path / "config.toml"
    places = f'[output]\ndirectory = "{tmp_path}/exports"\n[state]\ndirectory = "{tmp_path}/state"\n'
    file.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n{places}')
    return file


def contents(state: Path) -> dict[str, bytes]:
    """The state's files without those that the daemon itself writes all the time."""
    files = (path for path in state.rglob("*") if path.is_file() and path.name not in ("live.json", "lease.json", "ckptd.log"))
    return {str(path): path.read_bytes() for path in files}


def test_a_second_machine_says_where_the_daemon_works_until_that_is_silent(config: Path) -> None:
    with machine("first", config, SERVE) as first:
        said(first, "daemon.started")
        (code, status, _), (_, answer, _), (_, checked, _) = verbs("second", config, "status", "status --json", "check")
        assert code == 0 and "a ckptd on first (pid " in status and "not running" not in status
        daemon = json.loads(answer)["daemon"]
        assert (daemon["running"], daemon["host"], daemon["pid"]) == (True, "first", first.pid)
        assert "a ckptd on first (pid " in " ".join(checked.split())
        ((_, answer, _),) = verbs("first", config, "status --json")
        assert json.loads(answer)["daemon"]["host"] is None
    ((code, status, _),) = verbs("second", config, "status")
    assert code == 0 and "not running" in status


def test_no_verb_of_a_second_machine_opens_the_journal(config: Path, tmp_path: Path) -> None:
    refused = ("queue pause", "queue resume", "queue retry --failed", "queue cancel x", "queue first x", "reload", "list", "show x",
               "verify --journal", "prune")  # fmt: skip
    with machine("first", config, SERVE) as first:
        said(first, "daemon.started")
        before = contents(tmp_path / "state")
        for command, (code, out, errors) in zip(refused, verbs("second", config, *refused), strict=True):
            assert code == 2 and out == "", (command, out)
            assert errors.count("a ckptd on first (pid ") == 1 and "Traceback" not in errors, (command, errors)
        assert contents(tmp_path / "state") == before


def test_a_daemon_of_a_second_machine_is_refused_and_takes_over_from_one_that_is_suspended(config: Path, tmp_path: Path) -> None:
    with machine("first", config, SERVE) as first:
        said(first, "daemon.started")
        with machine("second", config, SERVE) as refused:
            assert "a ckptd on another machine uses it (pid" in said(refused, "first")
            assert refused.wait(60) == 75  # as for the lock: a service tries it again
        first.send_signal(signal.SIGSTOP)
        with machine("second", config, SERVE) as second:
            said(second, "lease.taken")
            said(second, "daemon.started")
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == 70
            assert second.poll() is None
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    assert not (tmp_path / "state" / "lease.json").exists()
