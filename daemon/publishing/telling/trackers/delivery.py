"""What a tracker gets of an export, and the process that gives it. Used by the sending process and by `ckptd check`.

The library is imported by that process alone (`writer.py`), which runs with the target's interpreter: the environment of a training has the
library that its users use. A delivery may come twice, so a writer looks for what the first one left.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from daemon.config.places.export_names import safe_run
from daemon.config.receivers import Tracker, database_of, store_folder_of
from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.advice import quoted
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.run_figures import point_of
from daemon.contract.values import number_at, text_at
from daemon.publishing.run_figures import MOST_BYTES, REPORT
from daemon.publishing.telling import hook
from daemon.publishing.telling.outcome import Outcome, without_secrets
from daemon.publishing.telling.trackers import stores

WRITER = Path(__file__).with_name("writer.py")
LACKING = 3
"""Its exit code without the library."""
LIMIT_SECONDS = 50.0
"""Of a writer; less than the sending process has for an attempt."""
FILES = (REPORT, "report.html", "README.md", "MANIFEST.json")
"""Of an export, what a tracker keeps beside the figures, where it keeps files."""
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
KEYS = {"mlflow": "MLFLOW_TRACKING_TOKEN", "wandb": "WANDB_API_KEY"}
"""The variable in which a library takes the key."""
FIGURES = ("kl", "agreement", "perplexity", "perplexity_ratio", "tokens_per_second", "speed_over_pytorch")
SCORES = ("accuracy", "macro_f1", "exact_match", "chrf")
"""What a tracker gets of a report's `figures` and of the `scores` in them."""
_ENVIRONMENT = re.compile(r"(MLFLOW|WANDB)_\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|((https?|all|no)_proxy)", re.IGNORECASE)
"""What a writer inherits beside what commands do."""
_HARMLESS = re.compile(
    r"TMPDIR|SSL_CERT_\w+|\w+_CA_BUNDLE|no_proxy|MLFLOW_HTTP_\w+|WANDB_(MODE|DIR|ENTITY|PROJECT|\w+_DIR)", re.IGNORECASE
)  # fmt: skip
"""What of that is no secret by its name; all else is taken for one."""
LEAST_SECRET = 8
"""Characters."""
_scratch: set[str] = set()
"""Folders of writers that run."""


def fault_of(kind: str, tracker: Tracker) -> str | None:
    """Why nothing can be written with this interpreter, as a clause; None where its library is there, or nothing can be said now."""
    try:
        looked = subprocess.run(
            [tracker.python, str(WRITER), "look", kind], cwd="/", env=hook.environment(), stdin=subprocess.DEVNULL, timeout=8,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if looked.returncode != LACKING:
        return None
    return f"the library is missing: `{tracker.python} -m pip install {PACKAGES[kind]}`, or name an interpreter that has it with `python`"


def write(kind: str, order: Mapping[str, Any]) -> Outcome:
    """Write what an export's message stands for. `order`: `url`, `secret`, `tracker`, `key`, `kind`, `payload`."""
    tracker, message = Tracker(**order["tracker"]), json.loads(order["payload"])
    target = message["data"]["target"]
    try:
        export = None if message["data"]["job"] is None else export_of(message) if target else {}
    except FileNotFoundError:
        gone = Path(target).parent.is_dir()  # else its disk is away, and may come back
        return Outcome(f"the export is gone, and its report with it: {quoted(target)}", rejected=gone)
    except (OSError, ValueError, RecursionError) as error:
        return Outcome(f"the export's report can't be used: {error}", rejected=isinstance(error, ValueError))
    if export == {}:
        return Outcome(None)  # nothing was published, or made that a report could tell of
    if (fault := fault_of(kind, tracker)) is not None:
        return Outcome(fault)
    database = database_of(order["url"])
    if export is None and (folder := tracker.folder or store_folder_of(order["url"])):
        fault = stores.fault_of_folder(Path(folder)) or (stores.fault_of_database(database) if database else None)
        if fault is not None or kind == "mlflow":  # which would make the store
            return Outcome(fault)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory() as scratch:
        beside = str(database.with_name("mlruns")) if database else ""
        text = json.dumps({"url": order["url"], "umask": order["umask"], "beside": beside, **asdict(tracker), "export": export})
        environment = {name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)}
        environment |= {KEYS[kind]: order["secret"]} if order["secret"] else {}
        environment["TMPDIR"] = scratch
        _scratch.add(scratch)
        ended = hook.run((tracker.python, str(WRITER), kind), LIMIT_SECONDS, order["key"], order["kind"], text, environment, said)
        said.seek(0)
        answer = said.read().decode(errors="replace").strip()
    _scratch.discard(scratch)
    if ended.error == hook.too_long(LIMIT_SECONDS):
        return Outcome(f"the tracker did not answer within {LIMIT_SECONDS:g} s")
    secrets = (order["url"], order["secret"], *(value for name, value in environment.items() if not _HARMLESS.fullmatch(name)))
    return Outcome(masked(answer, secrets) or ended.error, rejected=ended.rejected)


def masked(text: str, secrets: Iterable[str]) -> str:
    """`text` without these, where they are long enough to be secrets, and without the parts of addresses among them."""
    for secret in sorted((secret for secret in secrets if "://" not in secret), key=len, reverse=True):
        text = text.replace(secret, "…") if len(secret) >= LEAST_SECRET else text
    addresses = " ".join(re.sub(r"\b[a-z][a-z0-9+.-]*://", "", secret, flags=re.IGNORECASE) for secret in secrets if "://" in secret)
    return without_secrets(text, "all://" + addresses)


def clear() -> None:
    """Remove what writers that are being ended had for a while."""
    for folder in list(_scratch):
        shutil.rmtree(folder, ignore_errors=True)


def export_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """An export for a tracker, by its published report; {} where there is a folder of another export. Raises OSError, ValueError."""
    data, folder = message["data"], Path(message["data"]["target"])
    report = json.loads(read_bounded(folder / REPORT, MOST_BYTES))
    point = point_of(report)
    if point is None:
        raise ValueError("it is no report of an export")
    if point.export != data["job"]:
        return {}
    run, root = data["run"], text_at(report, "checkpoint", "root") or ""
    place = safe_run(run, "{run}")
    return {
        "job": data["job"], "key": _digest(data["job"]), "run": run, "root": root, "run_key": _digest(f"{root}\0{run}"), "place": place,
        "step": point.step, "ending": point.ending, "at": datetime.fromisoformat(point.finished or message["timestamp"]).timestamp(),
        "name": folder.name, "folder": str(folder), "checkpoint": text_at(report, "checkpoint", "path") or "", "host": data["host"],
        "state": message["type"], "verdict": data["verdict"] or "", "link": data["link"] or "",
        "best": (data["artifact"] or {}).get("variant", ""),
        "files": [str(file) for file in map(folder.joinpath, FILES) if file.is_file()],
        "verdicts": {name: row.verdict for name, row in point.artifacts.items() if row.published},
        "figures": {str(row["variant"]): _figures(row) for row in report["artifacts"] if row.get("variant") in point.artifacts},
    }  # fmt: skip


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an artifact, those alone that were measured, by the names of the report."""
    values = {
        "passed": float(row.get("verdict") == Verdict.PASSED),
        **{name: number_at(row, name) for name in ("size_bytes", "size_ratio")},
        **{name: number_at(row, "figures", name) for name in FIGURES},
        **{name: number_at(row, "figures", "scores", name) for name in SCORES},
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def _digest(text: str) -> str:
    """A name that every tracker takes, and that no other text has."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
