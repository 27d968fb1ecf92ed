"""`python writer.py tensorboard | mlflow | wandb`: writes one export, given as JSON on standard input, with the library's own writer.

`delivery.py` starts it by its path, with an interpreter that has the library; so it imports that and the standard library alone. Without an
export it asks the server whether it could write, and makes nothing; `look LIBRARY` whether that is there (3: it isn't). Exit code 0: done;
65: the tracker refuses this export, and would each time; else what it prints says why not. A second run with the same export leaves what
one would.
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

LACKING, REFUSED = 3, 65
TEMPORARY = (401, 403, 404, 407, 408, 425, 429)
"""Of a server's answers 4xx those that say nothing against an export."""
ALONE = {
    "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "WANDB_ERROR_REPORTING": "false", "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",
}  # fmt: skip
"""So that a library speaks to nobody but the server that was configured."""
_STATUS = re.compile(
    r"\b(?:too.many|error.code|returned.error|HTTP|status(?:.code)?:?).([345]\d\d)\b|\b([345]\d\d).(?:Client|Server).Error"
)  # fmt: skip
_CLOSED = re.compile(r"\b(401|403|unauthori[sz]ed|permission.denied|API.key)\b", re.IGNORECASE)
_TOO_LARGE = re.compile("too.large.to.convert|out.of.range")


def tensorboard(order: dict[str, Any]) -> None:
    """Write an event file for each artifact, as a run of TensorBoard of its own: FOLDER/RUN/VARIANT.

    The file is named by step and job, and takes the place of that of an earlier delivery.
    """
    from tensorboard.summary import Writer

    if (export := order["export"]) is None:
        return
    place = _place(order["folder"], export)
    for variant, figures in export["figures"].items():
        folder = os.path.join(place, variant)
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


def _place(folder: str, export: dict[str, Any]) -> str:
    """The folder of a training run; where runs of several roots have the same name, all but the first one's have a mark."""
    for name in (export["place"], f"{export['place']}~{export['run_key'][:6]}"):
        place = os.path.join(folder, name)
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, ".ckptd-run"), "a+", encoding="utf-8") as mark:
            mark.seek(0)
            if (owner := mark.read()) in ("", export["run_key"]):
                mark.write(export["run_key"] if not owner else "")
                break
    return place


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
    # Without a server its files would go below the current folder, which is /.
    experiment = known.experiment_id if known else client.create_experiment(order["experiment"], order["beside"] or None)
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
    if order["model"]:
        if order["variant"] in export["verdicts"] if order["variant"] else export["verdicts"]:
            _register(client, order, run)
        _withdraw(client, order)


def _register(client: Any, order: dict[str, Any], run: str) -> None:
    """Make a version of the registered model, unless there is one of this export, and call it by the alias where that is due."""
    from mlflow.exceptions import MlflowException

    export, name = order["export"], _model(order)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {
        "ckptd.job": export["job"], "ckptd.run": export["run"], "ckptd.step": str(export["step"]), "ckptd.checkpoint": export["checkpoint"],
        "ckptd.verdict": _verdict(order), "ckptd.folder": _folder(order), "ckptd.best": export["best"], "ckptd.host": export["host"],
    }  # fmt: skip
    keys = {"ckptd.key": export["key"], "ckptd.run_key": export["run_key"]}
    text = "\n\n".join(filter(None, (export["verdict"], export["link"])))
    versions = _versions(client, order, "ckptd.key", export["key"])
    if versions:
        version = versions[0]
        client.update_model_version(name, version.version, text)
        for key, value in tags.items():
            client.set_model_version_tag(name, version.version, key, value)
    else:
        # A server takes no folder that it can't see: there, the version is of the files beside the model, and a tag names the folder.
        is_server = order["url"].startswith(("http:", "https:"))
        source = f"runs:/{run}/{export['name']}" if is_server else _folder(order)
        version = client.create_model_version(
            name, source, run, {**tags, **keys}, run_link=export["link"] or None, description=text, await_creation_for=0
        )
    if not order["alias"] or not _passed(order) or "ckptd.alias" in version.tags:
        return
    if (kept := _keeps(client, order)) is None:
        client.set_registered_model_alias(name, order["alias"], version.version)
        client.set_model_version_tag(name, version.version, "ckptd.alias", order["alias"])
    elif kept:
        client.set_model_version_tag(name, version.version, "ckptd.alias_not_moved", kept)


def _withdraw(client: Any, order: dict[str, Any]) -> None:
    """Mark the versions whose files this export has replaced, and take the alias from one of them where what is there now did not pass."""
    export, name = order["export"], _model(order)
    for old in _versions(client, order, "ckptd.run_key", export["run_key"]):
        if old.tags.get("ckptd.folder") != _folder(order) or old.tags.get("ckptd.key") == export["key"]:
            continue
        if order["alias"] and not _passed(order) and str(_holder(client, order)) == str(old.version):
            client.delete_registered_model_alias(name, order["alias"])
        client.set_model_version_tag(name, old.version, "ckptd.replaced_by", export["job"])


def _versions(client: Any, order: dict[str, Any], tag: str, value: str) -> list[Any]:
    versions = client.search_model_versions(f"tags.`{tag}`='{value}'")
    return [version for version in versions if version.name == _model(order)]


def _holder(client: Any, order: dict[str, Any]) -> Any:
    """The number of the version that has the alias."""
    return client.get_registered_model(_model(order)).aliases.get(order["alias"])


def _model(order: dict[str, Any]) -> str:
    """The registered model's name, which has no / or : in MLflow."""
    return str(order["model"]).replace("{run}", re.sub("[/:]", "-", order["export"]["run"]))


def _folder(order: dict[str, Any]) -> str:
    """What a version of the model stands for."""
    return str(os.path.join(order["export"]["folder"], order["variant"])).rstrip("/")


def _verdict(order: dict[str, Any]) -> str:
    export, variant = order["export"], order["variant"]
    return str(export["verdicts"].get(variant, "not published") if variant else export["state"])


def _passed(order: dict[str, Any]) -> bool:
    return _verdict(order) == ("passed" if order["variant"] else "succeeded")


def _keeps(client: Any, order: dict[str, Any]) -> str | None:
    """Why the alias stays where it is, "" for a later step of the same run; None where it goes forward by this export."""
    if (number := _holder(client, order)) is None:
        return None
    tags = client.get_model_version(_model(order), number).tags
    if "ckptd.run_key" not in tags:
        return f"version {number}, which has it, was not made by ckptd"
    if tags["ckptd.run_key"] != order["export"]["run_key"]:
        return f"version {number}, which has it, is of a run of the same name in another folder"
    return None if int(tags["ckptd.step"]) <= order["export"]["step"] else ""


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
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            os.environ.setdefault(name, scratch)
        if order["export"] is None:
            if not order["offline"]:
                library.login(verify=True, timeout=30)
            return
        os.makedirs(folder, exist_ok=True)
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


def _status(error: BaseException) -> int:
    """The status of the server's answer that an error tells of; 0 where it tells of none."""
    said = _STATUS.search(str(error))
    return int(said[1] or said[2]) if said else 0


def _is_refusal(error: BaseException) -> bool:
    """Whether the export is the trouble, and another attempt would be in vain."""
    if type(error).__name__.startswith("Unsupported"):  # an address of a kind that MLflow doesn't know
        return False
    too_large = isinstance(error, OverflowError) or _TOO_LARGE.search(str(error))
    status = _status(error) or int(getattr(error, "get_http_status_code", int)())
    return bool(too_large) or (400 <= status < 500 and status not in TEMPORARY)


def _sentence(error: BaseException) -> str:
    """What an error says, in one line; libraries put pages below it."""
    text, status = str(error), _status(error)
    if isinstance(error, OSError) and error.filename and isinstance(error, FileExistsError | NotADirectoryError):
        return f"there is no folder at {error.filename}: it is a file, or a link that leads nowhere"
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename} can't be written by this user"
    if 300 <= status < 400:
        return f"the server answers with {status}: it refers to another address, where nothing is sent; give that address instead"
    if status in (401, 403) or _CLOSED.search(text):
        return f"the server does not let ckptd in{f' ({status})' if status else ''}: key_file has no key, or not the right one for it"
    if status >= 500:
        return f"the server answers with {status}"
    if re.search(r"Max.retries.exceeded|[Tt]imed.out|[Cc]onnection refused", text):
        reason = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
        return f"the server does not answer: {reason[1] if reason else 'no answer in time'}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def main() -> int:
    """Do it; what libraries print goes to standard error."""
    if sys.argv[1] == "look":
        return LACKING * (importlib.util.find_spec(sys.argv[2]) is None)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.update({**ALONE, "XDG_CONFIG_HOME": tempfile.gettempdir()})
    try:
        order = load(sys.stdin)
        os.umask(order["umask"])
        {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[sys.argv[1]](order)
    except Exception as error:
        answers.write(_sentence(error))
        return REFUSED if _is_refusal(error) else 1
    finally:
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
