"""`python reading.py tensorboard FOLDER | mlflow URI MODEL | wandb FILE`: what a tracker has, as JSON, by its own reader."""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any


def tensorboard(folder: str) -> Any:
    """Run → tag → [step, time, value] of each point."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.util.tensor_util import make_ndarray

    events = EventMultiplexer().AddRunsFromDirectory(folder)
    events.Reload()
    return {
        run: {
            tag: [[p.step, p.wall_time, float(make_ndarray(p.tensor_proto))] for p in events.Tensors(run, tag)] for tag in tags["tensors"]
        }
        for run, tags in events.Runs().items()
    }


def mlflow(uri: str, model: str) -> Any:
    """Its runs with each metric's points and their files, and the model's versions and aliases."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    runs = []
    for run in client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]):
        id = run.info.run_id
        points = {key: [[p.step, p.timestamp, p.value] for p in client.get_metric_history(id, key)] for key in run.data.metrics}
        folders = [file.path for file in client.list_artifacts(id)]
        files = {folder: [os.path.basename(file.path) for file in client.list_artifacts(id, folder)] for folder in folders}
        runs.append(
            {"id": id, "name": run.info.run_name, "status": run.info.status, "tags": run.data.tags, "metrics": points, "files": files}
        )
    versions = [
        {"number": int(version.version), "source": version.source, "run": version.run_id, "tags": version.tags}
        for version in client.search_model_versions(f"name = '{model}'")
    ]
    models = client.search_registered_models(f"name = '{model}'")
    aliases = {alias: int(number) for model in models for alias, number in client.get_registered_model(model.name).aliases.items()}
    return {"runs": runs, "versions": sorted(versions, key=lambda version: version["number"]), "aliases": aliases}


def wandb(path: str) -> Any:
    """The run's record, its rows of history, its summary and its files, of an offline run's file (a log as LevelDB writes it)."""
    from wandb.proto import wandb_internal_pb2 as records

    with open(path, "rb") as file:
        data = file.read()
    at, whole, rows, summary, files, run = 7, b"", [], {}, [], {}
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind not in (1, 4):  # the whole record, or its last piece
            continue
        record = records.Record.FromString(whole)
        whole = b""
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
        elif record.WhichOneof("record_type") == "summary":
            summary |= {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update}
        elif record.WhichOneof("record_type") == "files":
            files += [file.path for file in record.files.files]
        elif record.WhichOneof("record_type") == "run":
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            run = {name: getattr(record.run, name) for name in ("run_id", "project", "entity", "run_group", "job_type", "display_name")}
            run["config"] = config
    return {"run": run, "rows": rows, "summary": summary, "files": files}


if __name__ == "__main__":
    print(json.dumps({"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[sys.argv[1]](*sys.argv[2:])))
