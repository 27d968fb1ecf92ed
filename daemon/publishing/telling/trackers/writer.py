"""`python writer.py tensorboard | mlflow | wandb`: writes one export, given as JSON on standard input, with the library's own writer.

`delivery.py` starts it by its path, with an interpreter that has the library; so it imports that and the standard library alone. Without an
export it looks whether it could write; `look LIBRARY` whether that is there (3: it isn't). Exit code 0: done; else what it prints says why
not. A second run with the same export leaves what one would.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from json import load
from typing import Any

LACKING = 3


def tensorboard(order: dict[str, Any]) -> None:
    """Write an event file for each artifact, as a run of TensorBoard of its own: FOLDER/RUN/VARIANT.

    The file is named by step and job, and takes the place of that of an earlier delivery.
    """
    from tensorboard.summary import Writer

    os.makedirs(order["folder"], exist_ok=True)
    export = order["export"]
    if export is None:
        tempfile.TemporaryFile(dir=order["folder"]).close()
        return
    for variant, figures in export["figures"].items():
        folder = os.path.join(order["folder"], export["place"], variant)
        os.makedirs(folder, exist_ok=True)
        name = f"events.out.tfevents.{export['step']:010d}.ckptd.{export['key']}"
        with tempfile.TemporaryDirectory() as scratch:
            writer = Writer(scratch)
            for figure, value in figures.items():
                writer.add_scalar("ckptd/" + figure, value, export["step"], wall_time=export["at"])
            writer.close()
            (made,) = glob.glob(os.path.join(scratch, "*"))
            beside = os.path.join(folder, f".{export['key']}.part")
            shutil.copyfile(made, beside)
            with open(beside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(beside, os.path.join(folder, name))


def mlflow(order: dict[str, Any]) -> None:
    """Write the figures to the MLflow run of the training run, the report as its artifact, and a version of the registered model."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # another attempt is the outbox's
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client, export = MlflowClient(order["url"], order["url"]), order["export"]
    known = client.get_experiment_by_name(order["experiment"])
    if export is None:
        return
    experiment = known.experiment_id if known else client.create_experiment(order["experiment"])
    runs = client.search_runs([experiment], f"tags.`ckptd.key` = '{export['run_key']}'", max_results=1)
    tags = {"ckptd.key": export["run_key"], "ckptd.run": export["run"], "ckptd.root": export["root"]}
    run = (runs[0] if runs else client.create_run(experiment, tags=tags, run_name=export["run"])).info.run_id
    at, step, rows = int(1000 * export["at"]), export["step"], export["figures"].items()
    metrics = [Metric(f"{variant}/{name}", value, at, step) for variant, row in rows for name, value in row.items()]
    if metrics and not any((old.step, old.timestamp) == (step, at) for old in client.get_metric_history(run, metrics[-1].key)):
        client.log_batch(run, metrics)  # in their order: the last one stands for all
    for path in export["files"]:
        client.log_artifact(run, path, export["name"])
    client.set_terminated(run)
    if order["model"] and (order["variant"] in export["verdicts"] if order["variant"] else export["verdicts"]):
        _register(client, order, run)


def _register(client: Any, order: dict[str, Any], run: str) -> None:
    """Make a version of the registered model, unless there is one of this export, and call it by the alias where that is due."""
    from mlflow.exceptions import MlflowException

    export, variant = order["export"], order["variant"]
    name = _model(order)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    verdict = export["verdicts"][variant] if variant else export["state"]
    passed = verdict == ("passed" if variant else "succeeded")
    folder = os.path.join(export["folder"], variant).rstrip("/")
    tags = {
        "ckptd.job": export["job"], "ckptd.run": export["run"], "ckptd.step": str(export["step"]), "ckptd.checkpoint": export["checkpoint"],
        "ckptd.verdict": verdict, "ckptd.folder": folder, "ckptd.best": export["best"], "ckptd.host": export["host"],
    }  # fmt: skip
    keys = {"ckptd.key": export["key"], "ckptd.run_key": export["run_key"]}
    text = "\n\n".join(filter(None, (export["verdict"], export["link"])))
    same = client.search_model_versions(f"tags.`ckptd.key`='{export['key']}'")
    versions = [version for version in same if version.name == name]
    if versions:
        version = versions[0]
        client.update_model_version(name, version.version, text)
        for key, value in tags.items():
            client.set_model_version_tag(name, version.version, key, value)
    else:
        # A server takes no folder that it can't see: there, the version is of the files beside the model, and a tag names the folder.
        is_server = order["url"].startswith(("http:", "https:", "databricks"))
        source = f"runs:/{run}/{export['name']}" if is_server else folder
        version = client.create_model_version(
            name, source, run, {**tags, **keys}, run_link=export["link"] or None, description=text, await_creation_for=0
        )
    if order["alias"] and passed and "ckptd.alias" not in version.tags and _is_newer(client, order):
        client.set_registered_model_alias(name, order["alias"], version.version)
        client.set_model_version_tag(name, version.version, "ckptd.alias", order["alias"])


def _model(order: dict[str, Any]) -> str:
    """The registered model's name, which has no / or : in MLflow."""
    return str(order["model"]).replace("{run}", re.sub("[/:]", "-", order["export"]["run"]))


def _is_newer(client: Any, order: dict[str, Any]) -> bool:
    """Whether the alias goes forward by this export: the version that has it is of no later step of the same run."""
    export = order["export"]
    number = client.get_registered_model(_model(order)).aliases.get(order["alias"])
    if number is None:
        return True
    tags = client.get_model_version(_model(order), number).tags
    return bool(tags.get("ckptd.run_key") != export["run_key"] or int(tags["ckptd.step"]) <= export["step"])


def wandb(order: dict[str, Any]) -> None:
    """Write a W&B run for the export, in the group of the training run. Its id is of the job, so that a second delivery resumes it."""
    quiet = {
        "SILENT": "true", "CONSOLE": "off", "DISABLE_GIT": "true", "DISABLE_CODE": "true", "X_DISABLE_STATS": "true",
        "X_SAVE_REQUIREMENTS": "false", "X_DISABLE_MACHINE_INFO": "true", "X_DISABLE_META": "true", "INIT_TIMEOUT": "30",
    }  # fmt: skip
    os.environ.update({"WANDB_" + name: value for name, value in quiet.items()})
    import wandb as library

    with tempfile.TemporaryDirectory() as scratch:
        folder = order["folder"] or scratch
        os.makedirs(folder, exist_ok=True)
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            os.environ.setdefault(name, scratch)
        if order["export"] is None:
            tempfile.TemporaryFile(dir=folder).close()
            if not order["offline"]:
                library.login(verify=True, timeout=30)
            return
        _write_run(library, order, folder)


def _write_run(library: Any, order: dict[str, Any], folder: str) -> None:
    export = order["export"]
    entity, _, project = order["project"].rpartition("/")
    earlier = glob.glob(os.path.join(folder, "wandb", "offline-run-*-" + export["key"])) if order["offline"] else []
    config = {name: export[name] for name in ("job", "run", "root", "step", "checkpoint", "host", "link")}
    with library.init(
        entity=entity or None, project=project, id=export["key"], resume=None if order["offline"] else "allow", dir=folder,
        mode="offline" if order["offline"] else "online", name=f"{export['run']} {export['name']}", group=export["run"],
        job_type="export", config={**config, "export": export["folder"]},
    ) as run:  # fmt: skip
        run.define_metric("checkpoint_step")
        run.define_metric("*", step_metric="checkpoint_step")
        figures = {f"{variant}/{name}": value for variant, row in export["figures"].items() for name, value in row.items()}
        run.log({"checkpoint_step": export["step"], **figures}, step=export["step"])  # a step that a resumed run has is not written again
        run.summary.update({"state": export["state"], "verdict": export["verdict"], "best": export["best"]})
        for path in export["files"]:
            shutil.copy(path, run.dir)
            run.save(os.path.join(run.dir, os.path.basename(path)), base_path=run.dir, policy="now")
    for older in earlier:
        shutil.rmtree(older)


def _sentence(error: BaseException) -> str:
    """What an error says, in one line; libraries put pages below it."""
    if re.search(r"Max.retries.exceeded|timed.out", str(error)):
        reason = re.search(r"\[Errno -?\d+\] ([\w ]+)", str(error))
        return f"the server does not answer: {reason[1] if reason else 'no answer in time'}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def main() -> int:
    """Do it; what libraries print goes to standard error."""
    if sys.argv[1] == "look":
        return LACKING * (importlib.util.find_spec(sys.argv[2]) is None)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[sys.argv[1]](load(sys.stdin))
    except Exception as error:
        answers.write(_sentence(error))
        return 1
    finally:
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
