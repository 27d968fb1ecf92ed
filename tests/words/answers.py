"""docs/answers.md: what a program reads of ckptd. `python -m tests.words.answers` writes it.

Fields and their meanings are those of the dataclasses that a verb prints; where a verb puts its answer together by hand, so does this file,
and a test compares both.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from daemon.cli.export import ExportedJob
from daemon.cli.parser.groups import RENAMED
from daemon.contract.delivering.orders import Listed
from daemon.contract.jobs.processes.benchmark import Bench
from daemon.contract.jobs.processes.conversion import Conversion
from daemon.contract.jobs.processes.recheck import Rechecked
from daemon.journal.letters import Letter
from daemon.operating.asked.by_hand import ByHand
from daemon.operating.diagnosis.doctor import Diagnosis, FormatsHere
from daemon.operating.integrity.fsck import Findings
from daemon.operating.monitoring.comparison import Comparison
from daemon.operating.monitoring.explain import CheckpointExplanation, ExportExplanation, RunExplanation
from daemon.operating.monitoring.run_quality import RunQuality
from daemon.operating.monitoring.status import JobDetails, JobStatus, Snapshot
from daemon.publishing.retention import Removal
from daemon.publishing.telling.content import Notification
from daemon.publishing.verification import Verification
from daemon.toolchains.install import Examined
from daemon.toolchains.overview import ToolchainHere
from daemon.toolchains.registry import Manifest
from tests.words.written import ROOT

PAGE = ROOT / "docs/answers.md"
Verb = tuple[str, ...]

ALWAYS = {
    0: "done",
    1: "failed; trying again does not help until you change something",
    2: "the command line or the configuration is wrong, something that you named does not exist, or another ckptd uses the state directory",
    70: "a thread of ckptd failed and could not be restarted; start ckptd again",
    75: "temporary failure: not enough memory or disk, the journal can't be used now, or a network problem; try again later",
    130: "interrupted by Ctrl-C",
    141: "the program that read the output ended first, as `head` does; says nothing about what was asked",
}
"""What a code means for every verb."""
EXITS: dict[Verb, dict[int, str]] = {
    ("run",): {
        0: "stopped by a signal",
        1: "it can't continue, for example because the journal is damaged; start it again",
        2: "the configuration is wrong or missing, or another daemon uses the state directory",
    },
    ("init",): {2: "the file exists and `--force` is not given, a given value is wrong, or there is no terminal for questions"},
    ("install-service",): {
        1: "a command that it ran failed",
        2: "it has no permission, or the configuration is not suitable for a service",
    },
    ("export",): {
        0: "all requested variants are published",
        1: "nothing is published: the export failed or was cancelled",
        3: "partial: some variants are published, some failed",
        75: "not enough memory or disk, or the checkpoint can't be read now; run the same command again to continue",
    },
    ("explain",): {
        0: "the checkpoint is complete; for a run: all of its checkpoints are complete; for a folder of an export: always",
        1: "not complete, or something could not be read",
    },
    ("status",): {
        0: "done, also if no daemon runs; `daemon.running` says whether one runs",
        1: "with `--exit-code`: no daemon runs, or it is unwell",
        75: "with `--exit-code`: a disk has too little free space; the daemon is well, work waits, and a restart would not help",
    },
    ("list",): {},
    ("show",): {2: "no job, or more than one job, matches this id"},
    ("compare",): {2: "one of the two is not an export, or it has no report yet"},
    ("bench",): {
        0: "every variant was measured; `cut` says what the limit of time left out of some",
        1: "no variant could be measured; `fault` of each says why",
        2: "there is no export, it has no such variant, or an option is wrong",
        3: "some variants could not be measured",
    },
    ("convert",): {
        0: "every tensor of the new folder is equal to its source; with `--to`: as `ckptd export`",
        1: "a file can't be converted; nothing is written",
        2: "the new folder exists, or the paths can't be meant so",
        3: "with `--to`: some variants are published, some failed",
    },
    ("quality",): {2: "no run of that name has an export, or no name was given and there are several runs"},
    ("logs",): {0: "done, also if there is no log yet", 2: "no job matches the id of `--job`, or it has no such stage"},
    ("check",): {0: "no problem found; there may be warnings", 2: "something is wrong; see `problems`"},
    ("formats",): {},
    ("demo",): {
        0: "all artifacts of all checkpoints exist and passed their checks",
        1: "an artifact is missing or failed",
        2: "wrong usage",
    },
    ("deliver",): {
        0: "it is in the queue, or lies there already; with `--wait`: it lies there",
        1: "with `--wait`: it failed; with `--list` and `--remove`: the target refuses it",
        2: "there is no such export or target, it is not to be delivered, no daemon runs (`--wait`), or people get that (`--remove`)",
        75: "with `--list` and `--remove`: the target can't be reached now",
    },
    ("queue", "retry"): {2: "there is nothing to retry, or the checkpoint no longer exists"},
    ("queue", "cancel"): {2: "the export is not waiting and not running"},
    ("queue", "pause"): {2: "the export is not waiting and not running"},
    ("queue", "resume"): {},
    ("queue", "first"): {2: "the export is not waiting"},
    ("reload",): {
        0: "the daemon uses the configuration as it is now",
        2: "the configuration is wrong and the previous one stays in use, the daemon works on another file, or no daemon runs",
        75: "the daemon did not answer in time",
    },
    ("verify",): {
        0: "no problem found",
        1: "there is a problem; with `--deep` or `--artifact`: an artifact failed",
        2: "there is no export (not with `--journal`), or it keeps no answers to check artifacts by",
        3: "no artifact failed, and one could not be checked again",
    },
    ("prune",): {},
    ("version",): {},
    ("notify", "test"): {0: "all services and targets accepted the message", 1: "one did not accept it", 2: "none is configured"},
    ("notify", "list"): {},
    ("notify", "resend"): {2: "no target that is configured now gave up the notification of this number"},
    ("config", "show"): {},
    ("toolchain", "list"): {},
    ("toolchain", "install"): {
        1: "it can't be installed, or does not work",
        75: "no network, not enough disk, or another process installs or removes it",
    },
    ("toolchain", "remove"): {2: "it is not installed", 75: "a stage is using it"},
    ("toolchain", "check"): {1: "it no longer works", 2: "it is not installed"},
    ("toolchain", "doctor"): {1: "one of them no longer works"},
}


class Field(NamedTuple):
    """One field of an answer."""

    type: Any
    meaning: str


DAEMON_ROW = {
    "config": Field(str | None, "Its configuration file; null if it was started without one."),
    "state_directory": Field(str, "Its state directory."),
    "pid": Field(int, "Its process id."),
    "user": Field(str, "The user of the process."),
    "command": Field(str, "The command that shows this daemon."),
}
EXPORT_ROW = {"sound": Field(bool, "True if there is no difference.")}
KEPT_ROW = {"path": Field(str, ""), "run": Field(str, ""), "step": Field(int, ""), "reason": Field(str, "The rule that keeps it.")}
VALUE_ROW = {
    "value": Field(Any, "The value, without secrets."),
    "origin": Field(str, "The file, environment variable or option that sets it."),
}
SERVICE_ROW = {
    "service": Field(str, "Its place in `[notify]` and its kind; never the URL."),
    "delivered": Field(bool, "Whether it accepted the message."),
    "error": Field(str | None, "Why it did not accept it."),
}
ANSWERS: dict[Verb, tuple[str, Any]] = {
    ("status",): (
        'an object; if several daemons run and none is named, `{"daemons": […]}` with the fields below; otherwise',
        (Snapshot, DAEMON_ROW),
    ),
    ("list",): ("a list", (JobStatus,)),
    ("show",): ("an object", (JobDetails,)),
    ("compare",): ("an object", (Comparison,)),
    ("bench",): ("an object", (Bench,)),
    ("convert",): ("an object; with `--to` that of `ckptd export`", (Conversion,)),
    ("quality",): ("an object", (RunQuality,)),
    ("export",): ("an object", (ExportedJob,)),
    ("deliver",): (
        'a list; with `--list` a list of Listed, with `--remove` `{"target", "removed": […]}`',
        (ByHand, Listed),
    ),
    ("explain",): (
        "an object, for a checkpoint, a run or a folder of an export (see `kind`)",
        (CheckpointExplanation, RunExplanation, ExportExplanation),
    ),
    ("check",): ("an object", (Diagnosis,)),
    ("formats",): ("an object", (FormatsHere,)),
    ("logs",): (
        "one object per line, as in the log file: `timestamp`, `level`, `logger`, `event` ([the list](events.md)), `message`, and"
        " fields of the event; with `--stage` the lines that it prints: `attempt` and `line`",
        (),
    ),
    ("verify",): (
        '`{"sound": true or false, "exports": […], "states": […]}`, without the part that was not asked for; where artifacts are checked'
        " again, `checks` in place of `states`; each export has these fields and those of Verification, each state directory those of"
        " Findings, each check those of Rechecked",
        (EXPORT_ROW, Verification, Findings, Rechecked),
    ),
    ("prune",): (
        '`{"dry_run", "freed" (bytes), "removed": […], "kept": […]}`; a kept export has the fields below; a removed one is'
        " (with `--keep` or `--unkeep`: the folders under `kept` and `left_to_the_rules`)",
        (Removal, KEPT_ROW),
    ),
    ("config", "show"): ('`{"files": […], "values": {KEY: …}}`; each value has these fields', (VALUE_ROW,)),
    ("notify", "test"): ("a list", (SERVICE_ROW,)),
    ("notify", "list"): ("a list", (Letter,)),
    ("toolchain", "list"): ('`{"toolchains": {NAME: …}}`; each is', (ToolchainHere,)),
    ("toolchain", "install"): ('`{"toolchains": […]}`; each has `folder`, and', (Manifest,)),
    ("toolchain", "doctor"): ('`{"toolchains": […]}`, those of which something is installed; each is', (Examined,)),
    ("toolchain", "check"): ("an object: `folder`, and", (Manifest,)),
    ("toolchain", "remove"): ('`{"name": …, "freed": …}`, the number of freed bytes', ()),
}
COMMON = {
    "a": "The first of the two.",
    "b": "The second.",
    "agreement": "Share of positions with the same most likely token as the live model.",
    "base_digest": "Digest of the base model's files.",
    "cosine_mean": "Mean cosine of vectors with the live model's.",
    "cpu": "The processor that the checks ran on.",
    "ending": "Whether it was written at the end of the training.",
    "error_max": "Largest error, in standard deviations of the live model's values.",
    "greedy_identical": "Prompts for which greedy decoding gave the live model's tokens.",
    "greedy_prompts": "Prompts that were decoded.",
    "kl": "Mean KL divergence, in nats.",
    "load_seconds": "Time to load the model.",
    "peak_rss_bytes": "Peak memory of its process.",
    "prefill_seconds": "Time to process the prompt.",
    "reasons": "Why it did not pass, as sentences.",
    "size_bytes": "Size of its files.",
    "speed_over_pytorch": "Its speed divided by PyTorch's.",
    "tokens_per_second": "Decoded tokens per second.",
    "wall_seconds": "Duration of the export.",
    "about": "A description for people.",
    "artifacts": "Variant → verdict.",
    "at": "Time; ISO 8601 in UTC.",
    "attempt": "Its number; the first is 1.",
    "attempts": "Number of attempts.",
    "base": "The base model: name or folder.",
    "bytes": "Size in bytes.",
    "checkpoint": "Its folder.",
    "code": "Its kind; stable.",
    "complete": "Whether nothing is missing.",
    "count": "Number of times.",
    "counts": "State → number.",
    "created": "Time when the checkpoint was taken.",
    "daemon": "The daemon.",
    "daemon_running": "Whether a daemon runs on this state directory.",
    "digest": "Digest of the requirements from which it was made.",
    "ended": "Time of the end; null if it has not ended.",
    "epoch": "Epoch of the training.",
    "evaluation": "The last evaluation's figures.",
    "export": "Id of the export.",
    "exports": "Number of exports that were checked.",
    "features": "",
    "files": "Its files.",
    "findings": "The problems.",
    "folder": "Its folder.",
    "folders": "The installed versions, one folder each.",
    "free": "Free bytes.",
    "freed": "Freed bytes.",
    "healthy": "Whether it is healthy.",
    "id": "Its id.",
    "installed": "Whether it is installed, or the time of the installation.",
    "job": "Id of the job.",
    "job_file": "The job file of the attempt.",
    "job_state": "State of the job.",
    "jobs": "The jobs, or their number.",
    "journal": "The information in the journal.",
    "layout": "The layout.",
    "log": "Path of its log.",
    "loss": "Loss of the training.",
    "manifest": "",
    "message": "The message.",
    "method": "`lora`, `full`, …",
    "missing": "What is missing.",
    "checkpoints": "The information about each checkpoint.",
    "toolchains": "Name → information about the toolchain.",
    "available": "Whether it can be made on this machine.",
    "size": "Size in bytes.",
    "probe": "The result of its test.",
    "name": "Its name.",
    "needed": "Needed bytes.",
    "notes": "Useful information that is not a problem.",
    "number": "Its number.",
    "packages": "Package → version.",
    "path": "Its path.",
    "paused": "Whether it is paused.",
    "pid": "Its process id.",
    "problem": "The problem; null if there is none.",
    "problems": "The problems.",
    "python": "Version of its Python.",
    "rank": "Rank of the LoRA.",
    "read": "Whether ckptd reads it.",
    "reason": "Why.",
    "remedy": "What to do.",
    "roots": "The watched directories.",
    "run": "Name of the run.",
    "running": "Whether it runs.",
    "seconds": "The duration.",
    "selected": "The decision of `[select]`.",
    "stage": "Name of the stage.",
    "started": "Time of the start; null if it has not started.",
    "state": "Its state, or its state directory.",
    "state_directory": "The state directory.",
    "status": "How it ended: `passed`, `partial`, …",
    "step": "Step of the training.",
    "strategy": "The method that was tried.",
    "target": "Folder of the export, or the service.",
    "text": "A sentence for people.",
    "thread": "Name of the thread.",
    "variants": "Name → information about the variant.",
    "verdict": "The verdict.",
    "version": "Version of ckptd.",
    "wanted": "Whether it is exported.",
    "warning": "A possible problem; null if there is none.",
    "warnings": "Possible problems, as sentences.",
    "why": "Why.",
    "best_metric": "The trainer's best metric so far.",
    "configuration": "When the configuration was last read, and what was wrong in it.",
    "kind": "The subject of the answer.",
    "last_seen": "Time when it was last found.",
    "first_seen": "Time when it was first found.",
    "lived": "Seconds between the two.",
    "architecture": "The architecture, as the kernel names it.",
    "vendor": "The vendor.",
    "model": "The name of the model.",
    "processor": "This machine's processor.",
    "incomplete": "Directories that do not change any more but are not complete.",
    "current": "Whether it is up to date.",
    "fraction": "The completed part, 0 to 1.",
    "error": "Why it failed; null if it did not fail.",
    "outcome": "The result.",
    "estimate": "Estimated bytes.",
    "waiting": "Number of waiting messages.",
    "unreadable": "Paths that can't be read, and why.",
}
"""What a field of this name means where its class does not say."""
_RENAMED = """
## Names of version 1.0

These commands of version 1.0 have other names now. The old names still work until version 2, with the same answers and exit codes, and say
the new name in a line on standard error.

| old | new |
| --- | --- |
"""
_API = """## The same by HTTP

With `page.listen` the daemon gives the answers of `status`, `show` and `quality`, and more, by HTTP
([operating.md](operating.md#the-page-and-the-api)). What can be asked of each route is in `/api/v1/openapi.json`. An error has its
code, and `error` and `remedy` as sentences. Answers have an ETag.

| route | gives | |
| --- | --- | --- |
"""
_HEAD = """# Exit codes and answers for programs

Scripts can rely on everything on this page. It is generated from the code by `python -m tests.words.answers`, and a test checks that both
are equal.

With `--json`, a command prints one JSON value on standard output and nothing else. An error is one sentence on standard error, also with
`--json`, and the exit code gives the kind of error. [Fault codes](fault-codes.md) are in the log and in the report. The names in
answers do not change. Times are ISO 8601 in UTC, sizes are in bytes and durations in seconds, unless a field says something else. A value
that is not known is `null`.

"""


def named_type(kind: Any) -> str:
    """A type as JSON has it, with links to the tables of objects."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if one is type(None) else named_type(one) for one in inner)
    if origin is typing.Literal:
        return " or ".join(f"`{one}`" for one in inner)
    if origin in (tuple, list):
        return f"list of {named_type(inner[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return "object" if inner[1] in (Any, object) else f"object: name → {named_type(inner[1])}"
    if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "text"}.get(kind, "any JSON")


@functools.cache
def docstrings(kind: type) -> dict[str, str]:
    """Field → the docstring below it, of a class and those that it comes from."""
    found: dict[str, str] = {}
    for one in reversed([part for part in kind.__mro__ if part.__module__.startswith(("daemon.", "tests."))]):
        body = ast.parse(inspect.getsource(one)).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
                found[before.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def fields_of(shape: Any) -> dict[str, Field]:
    """Field → its type and meaning."""
    if isinstance(shape, dict):
        return {name: Field(one.type, one.meaning or COMMON[name]) for name, one in shape.items()}
    names = list(shape.model_fields) if issubclass(shape, BaseModel) else [one.name for one in dataclasses.fields(shape)]
    hints, said = typing.get_type_hints(shape), docstrings(shape)
    return {name: Field(hints[name], said.get(name) or COMMON.get(name, "")) for name in names}


def below(kind: Any) -> list[Any]:
    """The classes that a type names."""
    inner = [one for part in typing.get_args(kind) for one in below(part)]
    return [kind] if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel)) else inner


def shapes() -> list[Any]:
    """Every class that an answer is made of, those of the verbs first."""
    from tests.words import openapi

    found = [*(shape for _, parts in ANSWERS.values() for shape in parts if not isinstance(shape, dict)), Notification]
    for shape in found:
        found += [kind for one in fields_of(shape).values() for kind in below(one.type) if kind not in found]
    return list(dict.fromkeys([*found, *openapi.shapes()]))


def in_json(text: str) -> str:
    """A docstring as a reader of JSON needs it."""
    return re.sub(r"\bNone\b", "null", text)


def _table(shape: Any) -> list[str]:
    said = {name: in_json(one.meaning).replace("|", r"\|") for name, one in fields_of(shape).items()}
    rows = [f"| `{name}` | {named_type(one.type)} | {said[name]} |" for name, one in fields_of(shape).items()]
    return ["| field | type | meaning |", "| --- | --- | --- |", *rows, ""]


def _api() -> list[str]:
    """The routes of the page's API."""
    from tests.words import openapi

    rows = []
    for path, told in openapi.ROUTES.items():
        gives = f"`{told.gives}`" if isinstance(told.gives, str) else named_type(told.gives)
        rows.append(f"| `{openapi.PREFIX}{path}` | {gives} | {told.summary} |")
    return [*_API.splitlines(), *rows, ""]


def page() -> str:
    """The whole page."""
    lines = [_HEAD + "## Exit codes", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {meaning} |" for code, meaning in ALWAYS.items()]
    lines += ["", "The exact meaning for some commands:", "", "| command | codes |", "| --- | --- |"]
    for verb, codes in EXITS.items():
        lines += [f"| `ckptd {' '.join(verb)}` | {'; '.join(f'**{code}** {said}' for code, said in codes.items())} |"] if codes else []
    lines += _RENAMED.splitlines() + [f"| `{old}` | `ckptd {' '.join(new)}` |" for old, new in RENAMED.items()]
    lines.append("")
    lines += ["## Answers with `--json`", ""]
    for verb, (what, parts) in ANSWERS.items():
        named = ", ".join(named_type(part) for part in parts if not isinstance(part, dict))
        lines += [f"`ckptd {' '.join(verb)} --json`: {what}{': ' if named else ''}{named}.", ""]
        for part in parts:
            lines += _table(part) if isinstance(part, dict) else []
    lines += _api()
    lines += [
        "`report` in `ckptd export --json` has the contents of `report.json`: [report.schema.json](report.schema.json).",
        "",
        "What a `webhook` or a `command` of `[[notify.targets]]` gets ([webhooks](webhooks.md)) is a [Notification](#notification).",
        "",
        "## Objects",
        "",
    ]
    for shape in shapes():
        lines += [f"### {shape.__name__}", "", in_json(" ".join((shape.__doc__ or "").split())), "", *_table(shape)]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    from tests.words import openapi

    PAGE.write_text(page(), "utf-8")
    openapi.FILE.write_text(openapi.text(), "utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n{openapi.FILE.relative_to(ROOT)}\n")
