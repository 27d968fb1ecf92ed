"""What a tracker's target does where there is nothing to write with, or nothing to write."""

from __future__ import annotations

import shutil
import venv
from pathlib import Path
from typing import Any

import pytest

from daemon.config.loading import WrongValues, load
from daemon.config.notify import NotifySettings
from daemon.contract.jobs.figures import ArtifactFigures, Scores
from daemon.journal.outbox import enter_message
from daemon.journal.rows import Notice
from daemon.operating.diagnosis.doctor import examine
from daemon.publishing.telling.trackers.delivery import FIGURES, SCORES
from tests.notify.conftest import Notify, deliver
from tests.trackers.conftest import Exports


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python without any library."""
    venv.create(tmp_path / "bare", with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


def settings(**table: Any) -> NotifySettings:
    return NotifySettings(targets=[{"name": "it", "tensorboard": "/events", **table}]).with_file()  # type: ignore[arg-type]


def test_without_the_library_the_message_waits_and_names_the_command(exports: Exports, notifier_of: Notify, bare: str) -> None:
    notifier = notifier_of(settings(python=bare))
    exports.ends(4)
    deliver(notifier)
    ((state, attempts, error),) = exports.waiting()
    assert (state, attempts) == ("pending", 1) and error is not None
    assert error.startswith(f"the library is missing: `{bare} -m pip install tensorboard`")


def test_check_names_a_library_that_is_missing_and_a_python_that_is_none(tmp_path: Path, bare: str) -> None:
    file = tmp_path / "config.toml"
    table = '[[notify.targets]]\nname = "{0}"\n{0} = "{1}"\npython = "{2}"\n'
    file.write_text(table.format("tensorboard", "/events", bare) + table.format("mlflow", "http://127.0.0.1:1", "/no/python"))
    problems = [problem for problem in examine(load(file), file).problems if problem.startswith("notify.targets")]
    assert "tensorboard (tensorboard): the library is missing" in problems[0] and f"`{bare} -m pip install tensorboard`" in problems[0]
    assert 'mlflow (mlflow): there is no program "/no/python" that can be run' in problems[1]


def test_an_export_that_is_gone_is_given_up_and_one_whose_disk_is_away_is_waited_for(
    exports: Exports, notifier_of: Notify, bare: str
) -> None:
    notifier = notifier_of(settings(python=bare))
    exports.ends(4, report=False)
    for _ in range(3):
        exports.journal.outbox.hasten()
        deliver(notifier)
    exports.ends(6)
    shutil.rmtree(exports.folder)
    for _ in range(4):
        exports.journal.outbox.hasten()
        deliver(notifier)
    (gone, *_), (away, attempts, error) = exports.waiting()
    assert gone == "abandoned" and (away, attempts) == ("pending", 4)
    assert error is not None and error.startswith("the export is gone, and its report with it: ")


def test_what_another_export_put_into_the_folder_and_what_published_nothing_is_not_written(
    exports: Exports, notifier_of: Notify, bare: str
) -> None:
    notifier = notifier_of(settings(python=bare))
    exports.ends(4)
    Exports.write_report(exports.folder / "llama" / "step-4", "llama-4-other", "llama", 4, "succeeded")
    refused = Notice("failed", "llama step 6: not published", "body", {"run": "llama", "step": 6})
    exports.journal.database.write("end", lambda c: enter_message(c, "llama-6", refused))
    deliver(notifier)
    assert [row[0] for row in exports.waiting()] == ["delivered"] * 2, "without a library, so nothing was to be written"


def test_a_tracker_is_told_of_the_ends_of_exports_alone(exports: Exports, notifier_of: Notify, bare: str) -> None:
    notifier_of(settings(python=bare, on=["stuck", "disk_low", "succeeded", "digest"]))
    exports.journal.database.write("tell", lambda c: enter_message(c, "", Notice("disk_low", "a disk is full", "body")))
    assert exports.waiting() == []
    assert settings().receivers[0].on == {"succeeded", "partial", "failed", "rejected"}
    assert settings(on=["stuck", "succeeded"]).receivers[0].on == {"succeeded"}


@pytest.mark.parametrize(("table", "said"), [
    ('tensorboard = "/t"\nwandb = "p"', "give exactly one of url, url_file, webhook, command, heartbeat, tensorboard, mlflow and wandb"),
    ('tensorboard = "/t"\nquiet = "22:00-07:00"', "a tracker has no quiet hours"),
    ('mlflow = "http://127.0.0.1"\nalias = "champion"', "alias and variant are of a registered model's versions"),
    ('mlflow = "S3CRET"', "mlflow is the URI of a tracking server (https://), a store"),
    ('mlflow = "sqlite:///S3CRET.db"', "mlflow is the URI of a tracking server (https://), a store"),
    ('mlflow = "databricks://S3CRET"', "mlflow is the URI of a tracking server (https://), a store"),
    ('mlflow = "/m"\nmodel = "team/{run}"', "model has no / and no : in MLflow"),
    ('mlflow = "/m"\nmodel = "m"\nalias = "Latest"', "alias is of letters, digits, _ and -"),
    ('mlflow = "/m"\nmodel = "m"\nalias = "v12"', "alias is of letters, digits, _ and -"),
    ('mlflow = "/m"\nmodel = "m"\nalias = "the best"', "alias is of letters, digits, _ and -"),
    ('mlflow = "/m"\nexperiment = " "', "experiment is empty"),
    ('tensorboard = "/t"\non = ["stuck", "digest"]', "a tracker gets something of succeeded, partial, failed and rejected alone"),
    ('tensorboard = "/t"\nkey_file = "key"', "key_file is for mlflow and wandb alone"),
    ('wandb = "p"\nmodel = "m"', "experiment, model, alias and variant are for mlflow alone"),
    ('mlflow = "/m"\nfolder = "/f"', "offline and folder are for wandb alone"),
    ('heartbeat = "https://h"\npython = "/p"', "python is for tensorboard, mlflow and wandb alone"),
    ('mlflow = "http://S3CRET"\nkey_file = "key"', "key_file goes to https:// addresses"),
    ('wandb = "a/b/c"', "wandb: must be PROJECT or ENTITY/PROJECT"),
    ('wandb = "p"\noffline = true', "offline needs a folder"),
    ('wandb = "p"\nkey_file = "nowhere"', "key_file: there is no such file"),
    ('wandb = "p"\nkey_file = "key"', "key_file: the file is no API key"),
])  # fmt: skip
def test_what_is_wrong_with_a_tracker_is_said_by_its_place(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "key").write_text("S3CRET S3CRET")
    file = tmp_path / "config.toml"
    file.write_text(f'[[notify.targets]]\nname = "x"\n{table}\n')
    with pytest.raises(WrongValues) as caught:
        load(file)
    assert said in str(caught.value) and "S3CRET" not in str(caught.value)


def test_the_figures_are_those_of_the_report() -> None:
    assert set(FIGURES) <= set(ArtifactFigures.model_fields) and set(SCORES) <= set(Scores.model_fields)
