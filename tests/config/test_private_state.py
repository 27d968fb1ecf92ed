"""The state directory is its user's alone: pins of checkpoints lie in it, and what children say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon.config.places.paths import foreground_state, make_private, prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.operating.diagnosis.doctor import examine, not_of_group
from daemon.operating.monitoring.metrics.exposition import Exposition
from daemon.operating.monitoring.metrics.figures import Figures
from daemon.system.filesystems.private import inherited_umask, private_files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_state_directory_is_private_and_so_is_what_is_not_published(tmp_path: Path) -> None:
    paths = prepare(tmp_path / "state", tmp_path / "out")
    assert {mode(path) for path in (paths.state, paths.pins, paths.jobs, paths.staging, paths.kept)} == {0o700}
    assert paths.closed == ()
    assert mode(tmp_path / "out") == 0o777 & ~inherited_umask()


def test_an_open_one_is_closed_and_that_is_said_once(tmp_path: Path) -> None:
    state = prepare(tmp_path / "state", tmp_path / "out").state
    (state / "journal.sqlite3").touch()
    state.chmod(0o755)
    (said,) = prepare(state, tmp_path / "out").closed
    assert mode(state) == 0o700 and str(state) in said and "0755" in said
    assert prepare(state, tmp_path / "out").closed == ()


def test_the_state_around_a_foreground_export_is_private_too(tmp_path: Path) -> None:
    state = foreground_state(tmp_path / "state", tmp_path / "checkpoint-1")
    prepare(state, tmp_path / "out")
    assert mode(tmp_path / "state") == mode(state) == 0o700


def test_a_directory_in_which_something_else_lies_is_not_closed_but_what_is_ours_in_it_is(tmp_path: Path) -> None:
    (tmp_path / "data" / "runs").mkdir(parents=True)
    (tmp_path / "data" / "runs").chmod(0o755)
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data" / "journal.sqlite3").touch(0o644)
    prepare(tmp_path / "data", tmp_path / "data" / "exports")
    assert mode(tmp_path / "data") == mode(tmp_path / "data" / "runs") == 0o755
    assert mode(tmp_path / "data" / "journal.sqlite3") == 0o600
    assert mode(tmp_path / "data" / "pins") == 0o700


def test_exports_inside_of_the_state_directory_stay_readable(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state").chmod(0o755)
    assert make_private(tmp_path / "state", [tmp_path / "state" / "exports"]) == []
    assert mode(tmp_path / "state") == 0o755


def test_metrics_stay_readable_for_their_collector(journal: Journal, tmp_path: Path) -> None:
    exposition = Exposition(journal, (), ())
    exposition.take(Figures("gauge"))
    with private_files():
        exposition.write(tmp_path / "collector" / "ckptd.prom")
    assert (mode(tmp_path / "collector"), mode(tmp_path / "collector" / "ckptd.prom")) == (0o755, 0o644)


def test_the_umask_that_the_program_was_started_with_is_remembered() -> None:
    before = inherited_umask()
    with private_files():
        assert inherited_umask() == before
        with private_files():
            assert inherited_umask() == before
        assert os.umask(0o077) == 0o077
    assert inherited_umask() == before


def test_check_says_who_else_may_read_state_and_notification_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.touch(0o644)
    prepare(tmp_path / "state", tmp_path / "out")
    (tmp_path / "state").chmod(0o755)
    sections = {"state": {"directory": tmp_path / "state"}, "output": {"directory": tmp_path / "out"}, "notify": {"urls": ("json://x/y",)}}
    warnings = "\n".join(examine(Settings(**sections), config).warnings)
    assert f"others may read {config} (mode 0644)" in warnings and f"others may read {tmp_path / 'state'} (mode 0755)" in warnings
    config.chmod(0o600)
    (tmp_path / "state").chmod(0o700)
    assert "others may read" not in "\n".join(examine(Settings(**sections), config).warnings)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_check_says_that_the_daemons_user_is_not_in_the_group_that_is_configured() -> None:
    assert not_of_group("daemon") == []
    os.seteuid(65534)
    try:
        assert any("not a member of 'daemon'" in problem for problem in not_of_group("daemon"))
    finally:
        os.seteuid(0)
