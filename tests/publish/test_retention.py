"""`[retention]` and `ckptd prune`: what goes, what must never go, and a removal that readers see whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from daemon.cli.main import maintenance
from daemon.config.settings import RetentionSettings
from daemon.contract.disk.export_layout import MANIFEST
from daemon.publishing.retention import DAY, Export, plan_removal, prune, read_exports, scores_of
from daemon.publishing.verification import verify
from tests.faults.layer import Faults, Rule
from tests.publish.parts import link as link_to
from tests.publish.parts import publish
from tests.sampling import some
from tests.verbs import run_program

NOW = 1_000_000_000.0


LINKED = "a link in its folder, such as `latest`, points to it"


def rules(last: int = 0, best: int = 0, days: float = 0.0) -> RetentionSettings:
    return RetentionSettings(keep_last=last, keep_best=best, keep_days=days)


def export(step: int, *, run: str = "run", loss: float | None = None, age: float = 100.0, **options: bool) -> Export:
    training = {} if loss is None else {"evaluation": {"eval_loss": loss}}
    path = Path(f"/exports/{run}/step-{step}" + (".failed" if options.get("failed") else ""))
    return Export(path, run, step, f"{run}-{step}", published=NOW - age * DAY, training=training, **options)


def steps(exports: list[Export], wanted: RetentionSettings) -> list[int]:
    """Steps of those that go."""
    return sorted(one.step for one in plan_removal(exports, wanted, NOW).removed)


some_exports = st.lists(
    st.builds(
        export, st.integers(1, 30), run=st.sampled_from(["a", "b"]), loss=st.none() | st.floats(0, 10), age=st.floats(0, 20),
        failed=st.booleans(), linked=st.booleans(), busy=st.booleans(),
    ),
    max_size=20, unique_by=lambda one: one.path,
)  # fmt: skip
some_rules = st.builds(rules, st.integers(0, 4), st.integers(0, 4), st.floats(0, 20))


@given(some_exports, some_rules)
def test_every_export_either_goes_or_stays_with_a_reason_and_some_never_go(exports: list[Export], wanted: RetentionSettings) -> None:
    decision = plan_removal(exports, wanted, NOW)
    kept = [one for one, _ in decision.kept]
    assert sorted([*decision.removed, *kept], key=lambda one: str(one.path)) == sorted(exports, key=lambda one: str(one.path))
    assert all(reason for _, reason in decision.kept)
    assert not any(one.linked or one.busy for one in decision.removed)
    if not (wanted.keep_last or wanted.keep_best or wanted.keep_days):
        assert not decision.removed
    for run in {one.run for one in exports}:
        good = [one for one in exports if one.run == run and not one.failed]
        newest = sorted(good, key=lambda one: one.step)[-max(1, wanted.keep_last) :]
        assert not set(map(id, newest)) & set(map(id, decision.removed))
    assert not any(NOW - one.published < wanted.keep_days * DAY for one in decision.removed)


@given(some_exports, some_rules, some_rules)
def test_a_further_rule_never_removes_what_the_others_keep(
    exports: list[Export], wanted: RetentionSettings, more: RetentionSettings
) -> None:
    if not (wanted.keep_last or wanted.keep_days):
        return  # keep_best alone may be unable to compare, and then keeps all
    both = rules(
        max(wanted.keep_last, more.keep_last), max(wanted.keep_best, more.keep_best), max(wanted.keep_days, more.keep_days)
    )  # fmt: skip
    gone = {one.path for one in plan_removal(exports, wanted, NOW).removed}
    assert {one.path for one in plan_removal(exports, both, NOW).removed} <= gone


@given(some_exports, some_rules)
def test_runs_are_judged_by_themselves_and_a_second_look_removes_nothing_more(
    exports: list[Export], wanted: RetentionSettings
) -> None:  # fmt: skip
    together = {one.path for one in plan_removal(exports, wanted, NOW).removed}
    alone = {one.path for run in ("a", "b") for one in plan_removal([e for e in exports if e.run == run], wanted, NOW).removed}
    assert together == alone
    left = [one for one in exports if one.path not in together]
    assert not plan_removal(left, wanted, NOW).removed


def test_the_rules_by_example() -> None:
    exports = [export(step, loss=loss) for step, loss in ((2, 3.0), (4, 1.0), (6, 2.0), (8, 2.5))]
    assert steps(exports, rules(last=1)) == [2, 4, 6]
    assert steps(exports, rules(best=1)) == [2, 6]  # the newest of the run stays in any case
    assert steps(exports, rules(last=1, best=2)) == [2]
    assert steps(exports, rules(days=1)) == [2, 4, 6]
    assert steps(exports, rules(days=101)) == []
    assert steps(exports, rules()) == []


def test_without_a_metric_keep_best_alone_removes_nothing_and_beside_another_rule_keeps_nothing() -> None:
    exports = [export(step) for step in (2, 4, 6)]
    assert steps(exports, rules(best=1)) == []
    assert steps(exports, rules(best=1, last=1)) == [2, 4]


def test_of_failed_exports_the_newest_stays_and_none_takes_the_place_of_a_good_one() -> None:
    exports = [export(2), export(4), export(5, failed=True), export(6, failed=True), export(7, failed=True)]
    assert steps(exports, rules(last=2)) == [5, 6]
    assert steps(exports, rules(last=1)) == [2, 5, 6]


def training(step: int, best: int, metric: float, **figures: float) -> Export:
    """An export whose trainer compares: its best step so far and the metric there."""
    known = {"best_global_step": best, "best_metric": metric, "evaluation": {f"eval_{name}": value for name, value in figures.items()}}
    return Export(Path(f"/x/step-{step}"), "run", step, str(step), training=known)


def test_best_follows_the_trainers_own_metric_and_its_direction() -> None:
    exports = [
        training(2, 2, 0.5, loss=1.0, accuracy=0.5),
        training(4, 4, 0.9, loss=2.0, accuracy=0.9),
        training(6, 4, 0.9, loss=0.5, accuracy=0.7),
    ]
    scores = scores_of(exports)
    assert sorted(scores, key=lambda path: scores[path]) == [Path(f"/x/step-{step}") for step in (2, 6, 4)]
    by_loss = [training(2, 2, 1.0, loss=1.0, accuracy=0.5), training(4, 2, 1.0, loss=2.0, accuracy=0.9)]
    assert scores_of(by_loss) == {Path("/x/step-2"): -1.0, Path("/x/step-4"): -2.0}


def test_a_metric_that_no_export_shows_is_not_guessed() -> None:
    assert scores_of([training(2, 1, 0.7, loss=1.0), training(4, 1, 0.7, loss=2.0)]) == {}
    assert scores_of([training(2, 2, 1.0, loss=1.0, accuracy=1.0)]) == {}, "two figures are equal, either may be meant"


# On the disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with five exports, `best` on step 4 and `latest` on step 10, and things of a person."""
    run = tmp_path / "exports" / "run"
    for step in (2, 4, 6, 8, 10):
        publish(tmp_path, step, run / f"step-{step}", run="run", step=step, export_id=f"job-{step}", status="succeeded")
    link_to(run / "best", run / "step-4")
    link_to(run / "latest", run / "step-10")
    (run / "notes").mkdir()
    (run / "notes" / "precious").write_text("of a person")
    (run / "notes.txt").write_text("of a person")
    return run


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_the_newest_stay_and_whatever_a_link_points_to(folder: Path, tmp_path: Path) -> None:
    (folder / "in-production").symlink_to("step-2")
    removed = prune([folder], "run", rules(last=2), staging=tmp_path / "staging")
    assert [one.path.name for one in removed] == ["step-6"]
    assert names(folder) == ["best", "in-production", "latest", "notes", "notes.txt", "step-10", "step-2", "step-4", "step-8"]
    assert names(tmp_path / "staging") == []


def test_a_dry_run_tells_the_same_and_removes_nothing(folder: Path, tmp_path: Path) -> None:
    before = names(folder)
    told = prune([folder], "run", rules(last=2), staging=tmp_path / "staging", dry_run=True)
    assert names(folder) == before
    assert told == prune([folder], "run", rules(last=2), staging=tmp_path / "staging")
    assert [one.path.name for one in told] == ["step-6", "step-2"]


def test_bytes_that_another_name_still_holds_are_not_counted_as_freed(tmp_path: Path) -> None:
    run = tmp_path / "exports" / "run"
    for step in (2, 4, 6):
        publish(tmp_path, step, run / f"step-{step}", run="run", step=step)
    for path in (run / "step-4").rglob("*"):
        if path.is_file():  # what step 4 was put together from lies elsewhere still; cut that
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
    by_step = {one.step: one.freed for one in prune([run], None, rules(last=1), staging=tmp_path / "staging2", dry_run=True)}
    assert by_step[4] == sum(path.stat().st_size for path in (run / "step-4").rglob("*") if path.is_file())
    assert by_step[2] == (run / "step-2" / MANIFEST).stat().st_size


def test_files_that_two_exports_share_are_freed_with_the_last_of_them(tmp_path: Path) -> None:
    run = tmp_path / "exports" / "run"
    for step in (2, 4, 6):
        publish(tmp_path, step, run / f"step-{step}", run="run", step=step)
    size = 1 << 20
    (run / "step-2" / "shared").write_bytes(b"x" * size)
    os.link(run / "step-2" / "shared", run / "step-4" / "shared")
    freed = [one.freed for one in prune([run], None, rules(last=1), staging=tmp_path / "staging2", dry_run=True)]
    assert sum(value >= size for value in freed) == 1


def test_exports_of_open_jobs_of_other_runs_and_folders_without_our_manifest_stay(folder: Path, tmp_path: Path) -> None:
    publish(tmp_path, 1, folder / "other-step-1", run="other", step=1)
    (folder / "step-6" / MANIFEST).unlink()
    removed = prune([folder], "run", rules(last=1), staging=tmp_path / "staging", busy={"job-2"})
    assert [one.path.name for one in removed] == ["step-8"]
    assert {"other-step-1", "step-6", "step-2"} <= set(names(folder))


def test_an_export_that_was_replaced_since_it_was_judged_stays(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*arguments: object) -> object:
        decision = plan_removal(*arguments)  # type: ignore[arg-type]
        publish(tmp_path, 99, folder / "step-8", run="run", step=8, export_id="another", status="succeeded")
        link_to(folder / "mine", folder / "step-6")
        return decision

    monkeypatch.setattr("daemon.publishing.retention.plan_removal", judge)
    assert [one.path.name for one in prune([folder], "run", rules(last=1), staging=tmp_path / "staging")] == ["step-2"]
    assert verify(folder / "step-8").sound
    assert verify(folder / "step-6").sound


CRASH = """
import errno, os, sys
from pathlib import Path
from daemon.publishing.retention import prune
from daemon.config.settings import RetentionSettings

def rename(first, second, genuine=os.rename):
    if Path(first).parent != Path(second).parent:
        raise OSError(errno.EXDEV, "Invalid cross-device link")
    genuine(first, second)

folder, staging, other = sys.argv[1:]
if other == "other file system":
    os.rename = rename
prune([Path(folder)], "run", RetentionSettings(keep_last=2), staging=Path(staging))
"""
POINTS = ["retention.before-rename", "retention.renamed", "retention.durable", "retention.removed"]


@pytest.mark.parametrize("disk", ["same file system", "other file system"])
@pytest.mark.parametrize("point", some(POINTS, of=2))
def test_killed_at_any_point_every_export_is_whole_or_gone_and_the_next_time_ends_it(
    folder: Path, tmp_path: Path, point: str, disk: str
) -> None:
    done = run_program(CRASH, folder, tmp_path / "staging", disk, CKPTD_FAULT=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for one in read_exports(folder):
        assert verify(one.path).sound
    visible = [name for name in names(folder) if name.startswith("step-")]
    assert visible == sorted(f"step-{step}" for step in (2, 4, 6, 8, 10) if step != 6 or point == "retention.before-rename")
    prune([folder], "run", rules(last=2), staging=tmp_path / "staging")
    assert names(folder) == ["best", "latest", "notes", "notes.txt", "step-10", "step-4", "step-8"]


@pytest.mark.parametrize("disk", ["same file system", "other file system"])
def test_nothing_of_an_export_is_deleted_while_a_reader_can_still_find_it(folder: Path, tmp_path: Path, disk: str) -> None:
    with Faults(Rule("unlink", below=folder), Rule("unlink", below=tmp_path / "staging")) as faults:
        done = faults.start([sys.executable, "-c", CRASH, str(folder), str(tmp_path / "staging"), disk])
        assert done.wait(60) == 0
        gone = [Path(path) for call in faults.calls for path in call.paths]
    assert len(gone) > 10 and len(names(folder)) == 7
    assert [path for path in gone if path.is_relative_to(folder) and not path.relative_to(folder).parts[0].startswith(".")] == []


def test_the_command_tells_what_would_go_and_why_the_rest_stays(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[output]\ndirectory = "{folder.parent}"\n[state]\ndirectory = "{tmp_path / "state"}"\n[retention]\nkeep_last = 2\n')
    app = typer.Typer()
    maintenance.register(app)
    told = json.loads(CliRunner().invoke(app, ["prune", "--config", str(config), "--dry-run", "--json"]).output)
    assert [Path(one["path"]).name for one in told["removed"]] == ["step-6", "step-2"]
    assert {Path(one["path"]).name: one["reason"] for one in told["kept"]} == {
        "step-10": LINKED, "step-8": "among the newest, keep_last = 2", "step-4": LINKED,
    }  # fmt: skip
    assert told["freed"] == sum(one["freed"] for one in told["removed"]) > 0
    assert "step-2" in names(folder)
    assert CliRunner().invoke(app, ["prune", "--config", str(config), "--run", "no such run"]).output.startswith("0 exports")
    answer = CliRunner().invoke(app, ["prune", "--config", str(config)])
    assert answer.exit_code == 0, answer.output
    assert f"removed {folder / 'step-2'}" in answer.output
    assert [name for name in names(folder) if name.startswith("step-")] == ["step-10", "step-4", "step-8"]
