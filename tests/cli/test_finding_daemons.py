"""The verbs and the service agree where the state is, and `ckptd status` finds the daemons that run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from daemon.cli.common import command_for
from daemon.cli.main import app
from daemon.config.loading import load
from daemon.config.places import instances
from daemon.config.places.instances import Instance, announced, running, state_of
from daemon.config.places.states import state_of_system
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.operating.reload import ask_for_reload
from daemon.system.lock import locked
from tests.service import Service

Make = Callable[..., Service]


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing of other tests' daemons; the folder in which these say that they run."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CKPTD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "runtime" / "ckptd"


def unit_like(service: Service) -> Service:
    """The same without `state.directory`, which systemd gives to the service alone."""
    service.config.write_text(service.config.read_text().replace(f'directory = "{service.state}"', 'directory = ""'))
    service.environment["STATE_DIRECTORY"] = str(service.state)
    return service


def is_up(value: dict[str, object]) -> bool:
    return bool(value["daemon"]["running"]) and bool(value["roots"])  # type: ignore[index]


def told(service: Service, *words: str) -> str:
    assert service.run_verb(*words) == 0, service.said
    return service.said


def without_arguments(*words: str) -> tuple[int, str]:
    answer = subprocess.run(
        [sys.executable, "-m", "daemon", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return answer.returncode, answer.stdout + answer.stderr


@pytest.mark.slow
def test_verbs_find_the_state_that_only_the_service_knows(make_service: Make, own_places: Path) -> None:
    service = unit_like(make_service())
    service.start()
    service.wait_for(is_up, 30)
    assert service.process is not None
    value = json.loads(told(service, "status", "--json"))
    assert value["daemon"] == {**value["daemon"], "running": True, "pid": service.process.pid}
    assert value["state_directory"] == str(service.state)
    assert "nothing has changed in it" in told(service, "reload")
    # And a link to the file is the file.
    link = service.folder / "link.toml"
    link.symlink_to(service.config)
    assert str(service.state) in without_arguments("status", "--json", "--config", str(link))[1]
    # What a killed daemon leaves is no daemon, and the next one clears it away.
    service.kill()
    assert len(list(own_places.iterdir())) == 1 and not running()
    assert "not running" in told(service, "status")
    service.start()
    service.wait_for(is_up, 30)
    assert [file.name for file in own_places.iterdir()] == [f"{service.process.pid}.json"]
    assert service.stop() == 0
    assert not list(own_places.iterdir())


@pytest.mark.slow
def test_all_verbs_find_it(make_service: Make) -> None:
    service = unit_like(make_service())
    service.start()
    service.wait_for(is_up, 30)
    assert "ckptd is watching" in told(service, "logs")
    assert "is paused now" in told(service, "queue", "pause")
    assert "The queue continues" in told(service, "queue", "resume")
    for verb in (("check",), ("verify", "--journal")):
        assert str(service.state) in told(service, *verb)
    for verb in ("list", "formats", "prune"):
        told(service, verb)
    for verb in (("show",), ("queue", "retry"), ("queue", "cancel"), ("queue", "first")):
        assert service.run_verb(*verb, "x") == 2 and "no job's id begins or ends with 'x'" in service.said


def test_of_several_daemons_status_lists_the_commands_and_nothing_is_done_to_one(own_places: Path, tmp_path: Path) -> None:
    with announced(tmp_path / "one.toml", tmp_path / "a"):
        (file,) = own_places.iterdir()
        known = json.loads(file.read_text())
        other = {**known, "pid": os.getppid(), "started": instances._started(os.getppid()), "config": str(tmp_path / "two.toml")}
        (own_places / "other.json").write_text(json.dumps(other))
        said = CliRunner().invoke(app, ["status"])
        assert said.exit_code == 0 and "2 daemons run on this machine" in said.stdout
        for name in ("one", "two"):
            assert f"`ckptd status --config {tmp_path}/{name}.toml`" in said.stdout
        rows = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)["daemons"]
        assert [row["pid"] for row in rows] == [os.getpid(), os.getppid()]
        with pytest.raises(UsageError) as caught:
            CliRunner().invoke(app, ["queue", "pause"], catch_exceptions=False)
        assert caught.value.fault.code is FaultCode.SEVERAL_DAEMONS


@pytest.mark.slow
def test_status_without_arguments_shows_the_one_that_runs_and_lists_several(make_service: Make) -> None:
    code, said = without_arguments("status")
    assert code == 0 and "not running" in said
    first, second = unit_like(make_service()), make_service()
    first.start()
    first.wait_for(is_up, 30)
    assert json.loads(without_arguments("status", "--json")[1])["state_directory"] == str(first.state)
    assert without_arguments("reload") == (0, "The daemon has read its configuration again; nothing has changed in it.\n")
    second.start()
    second.wait_for(is_up, 30)
    code, said = without_arguments("status")
    assert code == 0
    for service in (first, second):
        assert service.process is not None
        assert f"pid {service.process.pid}" in said
        assert f"`ckptd status --config {service.config}`" in said
    rows = json.loads(without_arguments("status", "--json")[1])["daemons"]
    assert {row["state_directory"] for row in rows} == {str(first.state), str(second.state)}
    # What changes something is not done to one of several.
    code, said = without_arguments("queue", "pause")
    assert code == 2 and "2 run here" in said and str(second.config) in said
    second.stop()
    assert "is paused now" in without_arguments("queue", "pause")[1]


def test_a_configuration_below_etc_has_its_state_in_var_lib(tmp_path: Path) -> None:
    assert state_of_system(Path("/etc/ckptd/config.toml")) == Path("/var/lib/ckptd")
    assert state_of_system(Path("/etc/ckptd-two/a/config.toml")) == Path("/var/lib/ckptd-two")
    assert state_of_system(Path("/etc/ckptd.toml")) == Path("/var/lib/ckptd")
    (tmp_path / "config.toml").symlink_to("/etc/ckptd/config.toml")
    assert state_of_system(tmp_path / "config.toml") == Path("/var/lib/ckptd")
    for elsewhere in (None, tmp_path / "etc" / "config.toml", Path("/etcetera/config.toml")):
        assert state_of_system(elsewhere) is None


def test_the_running_daemon_is_asked_before_the_file_and_after_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndirectory = "{tmp_path}/written"\n')
    with announced(file, tmp_path / "real"):
        assert load(file, ask_running=True).state_directory == tmp_path / "real"
        assert load(file).state_directory == tmp_path / "written"  # the daemon itself does not ask
        monkeypatch.setenv("CKPTD_STATE__DIRECTORY", str(tmp_path / "said"))
        assert load(file, ask_running=True).state_directory == tmp_path / "said"
        monkeypatch.delenv("CKPTD_STATE__DIRECTORY")
    assert load(file, ask_running=True).state_directory == tmp_path / "written"


def test_a_process_with_the_pid_of_a_dead_daemon_is_none(own_places: Path, tmp_path: Path) -> None:
    with announced(None, tmp_path / "state"):
        (file,) = own_places.iterdir()
        known = json.loads(file.read_text())
        assert [one.pid for one in running()] == [os.getpid()]
        for key, value in (("started", known["started"] + 1), ("boot", "another"), ("pid", 2**22 + 1), ("state", "relative")):
            file.write_text(json.dumps({**known, key: value}))
            assert not running()
            assert state_of(None, Path("/x")) == Path("/x")


@given(
    st.one_of(
        st.binary(max_size=200), st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps).map(str.encode)
    )
)
def test_whatever_lies_there_is_a_daemon_or_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "1.json"
    file.write_bytes(content)
    assert instances._read(file, True) is None


@pytest.mark.parametrize("how", ["link", "pipe", "open", "folder"])
def test_what_another_user_could_have_put_there_is_not_believed(how: str, own_places: Path, tmp_path: Path) -> None:
    with announced(None, tmp_path / "state"):
        (file,) = own_places.iterdir()
        if how == "link":
            os.rename(file, tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        elif how == "pipe":
            file.unlink()
            os.mkfifo(file)
        elif how == "open":
            own_places.chmod(0o777)
        else:
            os.rename(own_places, tmp_path / "other")
            own_places.symlink_to(tmp_path / "other")
        assert not running()


def test_a_daemon_that_can_not_say_that_it_runs_goes_on(own_places: Path, tmp_path: Path) -> None:
    own_places.write_text("a file is in the way")
    with announced(None, tmp_path):
        assert not running()


def test_of_other_users_daemons_root_is_told_the_command(tmp_path: Path) -> None:
    theirs = Instance(Path("/home/x/my config.toml"), Path("/home/x/s"), 5, 12345, trusted=False)
    assert command_for(theirs) == "sudo -u 12345 ckptd status --config '/home/x/my config.toml'"
    mine = Instance(None, tmp_path, 5, os.geteuid(), trusted=True)
    assert command_for(mine) == f"env CKPTD_STATE__DIRECTORY={tmp_path} ckptd status"


def test_reload_signals_no_process_of_another_user(make_service: Make, tmp_path: Path) -> None:
    """Who may write the state directory could else name any pid for root to signal."""
    service = make_service()
    if os.geteuid() != 0:
        other = "1"  # init
    else:
        victim = subprocess.Popen([sys.executable, "-c", "import os; os.setuid(65534); print(flush=True); input()"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert victim.stdout is not None
        victim.stdout.readline()
        other = str(victim.pid)
    service.state.mkdir()
    with locked(service.state / "lock"):
        for text in (other, "0", "-1", "no number", str(2**40)):
            (service.state / "lock").write_text(text)
            with pytest.raises(UsageError) as caught:
                ask_for_reload(load(service.config).state_directory)
            assert caught.value.fault.code is FaultCode.NOT_RUNNING
    if os.geteuid() == 0:
        assert victim.poll() is None
        victim.communicate(b"\n", timeout=20)
