"""Exports that `ckptd prune --keep` names, and those that the default of `[retention]` leaves alone."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from daemon.cli.main import maintenance
from daemon.config.places.export_names import is_kept
from daemon.config.places.paths import Paths, StatePaths, foreground_state
from daemon.config.settings import RetentionSettings, Settings
from daemon.publishing import keeping
from daemon.publishing.keeping import SPARED, Scope
from daemon.publishing.retention import Export, plan_removal, prune
from daemon.publishing.verification import verify
from daemon.running.endings import removes
from tests.publish.parts import publish

STEPS = tuple(range(1, 11))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output with ten exports of one run."""
    for step in STEPS:
        publish(
            tmp_path, step, tmp_path / "out" / "run" / f"step-{step}", run="run", step=step, export_id=f"job-{step}", status="succeeded"
        )
    return tmp_path / "out"


def there(output: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (output / "run").glob("step-*"))


def removed(output: Path, rules: RetentionSettings, scope: Scope | None = None) -> list[int]:
    gone = prune([output / "run"], None, rules, staging=output / ".staging" / "here", top=output, scope=scope)
    return sorted(removal.step for removal in gone)


def test_the_default_keeps_the_latest_five_and_the_best_three() -> None:
    losses = {step: float(abs(step - 2)) for step in STEPS}  # the best are 2, 1 and 3
    exports = [
        Export(Path(f"/out/run/step-{step}"), "run", step, f"job-{step}", training={"evaluation": {"eval_loss": losses[step]}})
        for step in STEPS
    ]
    decided = plan_removal(exports, RetentionSettings(), 0.0, scope=Scope(0.0, {export.export for export in exports}))
    assert sorted(export.step for export in decided.removed) == [4, 5]


def test_rules_that_are_set_mean_what_they_meant_before_there_was_a_default() -> None:
    for given, rules in (
        ({"keep_last": 2}, (2, 0, 0.0)), ({"keep_days": 30}, (0, 0, 30.0)), ({"keep_last": 0}, (0, 0, 0.0)), ({}, (5, 3, 0.0)),
    ):  # fmt: skip
        settings = Settings.model_validate({"retention": given}).anchored(Path("/etc")).retention
        assert (settings.keep_last, settings.keep_best, settings.keep_days) == rules
        assert settings.by_default == (not given)


def test_the_default_leaves_alone_what_was_there_before_it_and_what_others_published(output: Path) -> None:
    early, late = 1_000_000.0, 2_000_000.0
    for step in STEPS:
        os.utime(output / "run" / f"step-{step}" / "MANIFEST.json", (early, early) if step < 4 else (late, late))
    mine = {f"job-{step}" for step in STEPS if step != 5}  # step 5 was exported by hand
    assert removed(output, RetentionSettings(), Scope(math.inf, mine)) == []
    assert removed(output, RetentionSettings(), Scope(late + 1, mine)) == []
    assert removed(output, RetentionSettings(), Scope(early + 1, mine)) == [4]
    assert there(output) == [1, 2, 3, *range(5, 11)]
    assert removed(output, RetentionSettings(keep_last=5)) == [1, 2, 3, 5], "a rule that somebody sets counts for all of them"


def test_a_daemon_begins_with_the_default_once(tmp_path: Path) -> None:
    assert keeping.since(tmp_path) is None
    begun = keeping.begin(StatePaths(tmp_path))
    assert keeping.begin(StatePaths(tmp_path)) == begun == keeping.since(tmp_path)
    (tmp_path / "retention.json").write_text("damaged")
    assert keeping.since(tmp_path) is None and keeping.begin(StatePaths(tmp_path)) > begun, "where nothing is known, more stays"


def test_a_kept_export_stays_until_it_is_released_and_is_as_it_was(output: Path) -> None:
    export = output / "run" / "step-3"
    keeping.keep(output, export)
    keeping.keep(output, export)
    assert is_kept(export) and not is_kept(output / "run" / "step-4") and verify(export).sound
    assert removed(output, RetentionSettings(keep_last=2)) == [1, 2, 4, 5, 6, 7, 8]
    assert keeping.release(output, export) and not keeping.release(output, export) and not is_kept(export)
    assert removed(output, RetentionSettings(keep_last=2)) == [3]


def test_the_command_marks_by_path_by_job_and_by_run_and_step_and_removes_nothing(tmp_path: Path, output: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[output]\ndirectory = "{output}"\n[state]\ndirectory = "{tmp_path / "state"}"\n[retention]\nkeep_last = 2\n')
    app = typer.Typer()
    maintenance.register(app)

    def answer(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["prune", "--config", str(config), *words])
        assert done.exit_code == code or (code == 2 and done.exception), done.output
        return done.output

    assert "step-3 stays, whatever [retention] says" in answer("--keep", "run/step-3", "--keep", str(output / "run" / "step-4"))
    assert there(output) == list(STEPS), "it only marks"
    planned = json.loads(answer("--dry-run", "--json"))
    reasons = {export["step"]: export["reason"] for export in planned["kept"]}
    assert reasons[3] == reasons[4] == "`ckptd prune --keep` named it"
    answer("--unkeep", "run/step-4")
    answer()
    assert there(output) == [3, 9, 10]
    answer("--keep", "run", code=2)
    answer("--keep", str(tmp_path), code=2)


def test_by_default_the_command_removes_nothing_before_a_daemon_began_and_says_why(tmp_path: Path, output: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[output]\ndirectory = "{output}"\n[state]\ndirectory = "{tmp_path / "state"}"\n')
    app = typer.Typer()
    maintenance.register(app)
    planned = json.loads(CliRunner().invoke(app, ["prune", "--config", str(config), "--json"]).output)
    assert planned["removed"] == [] and there(output) == list(STEPS)
    assert {export["reason"] for export in planned["kept"] if export["step"] < 6} == {SPARED}


def test_an_export_in_the_foreground_removes_others_only_by_rules_that_are_set(tmp_path: Path) -> None:
    state = tmp_path / "state"
    mine, by_hand = (Paths(place, tmp_path, "me") for place in (state, foreground_state(state, tmp_path / "checkpoint-1")))
    assert removes(RetentionSettings(), mine) and not removes(RetentionSettings(), by_hand)
    assert removes(RetentionSettings(keep_last=1), by_hand) and not removes(RetentionSettings(keep_last=0), mine)
