"""docs/answers.md: what a program reads of ckptd. `python -m tests.words.answers` writes it.

Fields and their meanings are those of the dataclasses that a verb prints; where a verb puts its answer together by hand, so does this file,
and a test compares both.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from daemon.cli.export import ExportedJob
from daemon.operating.diagnosis.doctor import Diagnosis, FormatsHere
from daemon.operating.integrity.fsck import Findings
from daemon.operating.monitoring.comparison import Comparison
from daemon.operating.monitoring.explain import CheckpointExplanation, RunExplanation
from daemon.operating.monitoring.status import JobDetails, JobStatus, Snapshot
from daemon.publishing.retention import Removal
from daemon.publishing.verification import Verification
from daemon.toolchains.registry import Manifest, ToolchainHere
from tests.words.written import ROOT

PAGE = ROOT / "docs/answers.md"
Verb = tuple[str, ...]

ALWAYS = {
    0: "done",
    1: "it failed, and trying again does not help until something is changed",
    2: "the command line or the configuration is wrong, or what was named is not there",
    70: "a thread of ckptd could not be kept alive; start it again",
    75: "it failed for now: too little memory or disk, a journal that another process holds, a network; try again later",
    130: "interrupted by Ctrl-C",
}
"""What a code means for every verb."""
EXITS: dict[Verb, dict[int, str]] = {
    ("run",): {0: "stopped by a signal", 1: "it can't go on, for example since the journal turned out to be damaged; start it again"},
    ("init",): {2: "the file is there already and there is no `--force`, what was given is wrong, or there is no terminal to ask on"},
    ("install-service",): {1: "a command that it ran failed", 2: "it may not do that, or the configuration is not fit for a service"},
    ("export",): {
        0: "every variant that was asked for is published",
        1: "nothing is published: the export failed or was cancelled",
        3: "partial: some variants are published, some failed",
        75: "no memory, disk or readable checkpoint now; the same command goes on where it was",
    },
    ("explain",): {0: "the checkpoint is complete; of a run: all of its checkpoints", 1: "not complete, or not all could be read"},
    ("status",): {
        0: "told, also where no daemon runs: `daemon.running` says that",
        1: "with `--exit-code`: no daemon runs, or it is unwell",
    },
    ("list",): {},
    ("show",): {2: "no job, or more than one, begins with that id"},
    ("compare",): {2: "one of the two names no export, or no report is there yet"},
    ("logs",): {0: "done, also where there is no log yet"},
    ("check",): {0: "nothing is wrong; there may be warnings", 2: "something is wrong: `problems`"},
    ("formats",): {},
    ("demo",): {0: "every artifact of each checkpoint is there and passed its check", 1: "one is not", 2: "wrong usage"},
    ("retry",): {2: "there is nothing to retry, or its checkpoint is gone"},
    ("cancel",): {2: "it neither waits nor runs"},
    ("pause",): {2: "it neither waits nor runs"},
    ("resume",): {},
    ("first",): {2: "it does not wait"},
    ("reload",): {
        0: "the daemon works by the new configuration",
        2: "the configuration is wrong and the one before stays, or no daemon runs",
        75: "the daemon did not answer in time",
    },
    ("verify",): {0: "nothing differs", 1: "something differs", 2: "no export there"},
    ("fsck",): {0: "nothing is wrong", 1: "something is"},
    ("prune",): {},
    ("notify-test",): {0: "every service took the message", 1: "one did not", 2: "no service is configured"},
    ("config", "show"): {},
    ("config", "preset"): {0: "done", 2: "there is no such preset"},
    ("toolchain", "list"): {},
    ("toolchain", "install"): {1: "it can't be made, or does not work", 75: "no network, no disk, or another process works on it"},
    ("toolchain", "remove"): {2: "it is not installed", 75: "a stage uses it"},
    ("toolchain", "check"): {1: "it does not work any more", 2: "it is not installed"},
}


class Field(NamedTuple):
    """One field of an answer."""

    type: Any
    meaning: str


DAEMON_ROW = {
    "config": Field(str | None, "Its configuration file; null where it was started without one."),
    "state_directory": Field(str, "Its state directory."),
    "pid": Field(int, "Its process."),
    "user": Field(str, "Whose process it is."),
    "command": Field(str, "The command line that asks this daemon."),
}
EXPORT_ROW = {"sound": Field(bool, "Whether nothing differs.")}
KEPT_ROW = {"path": Field(str, ""), "run": Field(str, ""), "step": Field(int, ""), "reason": Field(str, "The rule that keeps it.")}
VALUE_ROW = {"value": Field(Any, "The value, without secrets."), "origin": Field(str, "File, variable, preset or option that gave it.")}
PRESET_ROW = {"about": Field(str, "What it is for."), "values": Field(dict[str, Any], "What it sets, as tables.")}
SERVICE_ROW = {
    "service": Field(str, "Its place in `notify.urls` and its kind; never the URL."),
    "delivered": Field(bool, "Whether it took the message."),
    "error": Field(str | None, "Why it did not."),
}
ANSWERS: dict[Verb, tuple[str, Any]] = {
    ("status",): (
        'an object; where several daemons run and none is named, `{"daemons": […]}` of the fields below; else',
        (Snapshot, DAEMON_ROW),
    ),
    ("list",): ("a list", (JobStatus,)),
    ("show",): ("an object", (JobDetails,)),
    ("compare",): ("an object", (Comparison,)),
    ("export",): ("an object", (ExportedJob,)),
    ("explain",): ("an object, of a checkpoint or of a run: `kind` says which", (CheckpointExplanation, RunExplanation)),
    ("check",): ("an object", (Diagnosis,)),
    ("formats",): ("an object", (FormatsHere,)),
    ("logs",): (
        "one object a line, as the log file has them: `timestamp`, `level`, `logger`, `event` ([the list](events.md)), `message`, and"
        " fields of the event",
        (),
    ),
    ("verify",): ('`{"sound": true or false, "exports": […]}`; each export has these fields, and those of', (EXPORT_ROW, Verification)),
    ("fsck",): ('`{"sound": true or false, "states": […]}`; each state directory is', (Findings,)),
    ("prune",): (
        '`{"dry_run", "freed" (bytes), "removed": […], "kept": […]}`; what is kept has the fields below, and what is removed is',
        (Removal, KEPT_ROW),
    ),
    ("config", "show"): ('`{"files": […], "values": {KEY: …}}`; each value has these fields', (VALUE_ROW,)),
    ("config", "preset"): ("an object: each preset by its name, with these fields", (PRESET_ROW,)),
    ("notify-test",): ("a list", (SERVICE_ROW,)),
    ("toolchain", "list"): ('`{"toolchains": {NAME: …}}`; each is', (ToolchainHere,)),
    ("toolchain", "install"): ("an object: `folder`, and", (Manifest,)),
    ("toolchain", "check"): ("an object: `folder`, and", (Manifest,)),
    ("toolchain", "remove"): ('`{"name": …, "freed": …}`, the bytes that are freed', ()),
}
COMMON = {
    "a": "The first of the two.",
    "b": "The second.",
    "agreement": "Share of positions with the same most likely token as the live model.",
    "base_digest": "Digest of the base model's files.",
    "cosine_mean": "Mean cosine of vectors with the live model's.",
    "cpu": "The processor that the checks ran on.",
    "ending": "Whether it was written when training had ended.",
    "error_max": "Largest error, in standard deviations of the live model's values.",
    "greedy_identical": "Prompts for which greedy decoding gave the live model's tokens.",
    "greedy_prompts": "Prompts that were decoded.",
    "kl": "Mean KL divergence, in nats.",
    "load_seconds": "How long loading took.",
    "peak_rss_bytes": "Peak memory of its process.",
    "prefill_seconds": "How long reading the prompt took.",
    "reasons": "Why it did not pass, as sentences.",
    "size_bytes": "Size of its files.",
    "speed_over_pytorch": "Its speed divided by PyTorch's.",
    "tokens_per_second": "Tokens decoded in a second.",
    "wall_seconds": "How long the export took.",
    "about": "What it is, for people.",
    "artifacts": "Variant → verdict.",
    "at": "When; ISO 8601 in UTC.",
    "attempt": "Its number; the first is 1.",
    "attempts": "How many there were.",
    "base": "The base model: its name or folder.",
    "bytes": "Size in bytes.",
    "checkpoint": "Its folder.",
    "code": "Which kind it is; stable.",
    "complete": "Whether nothing is missing.",
    "count": "How often.",
    "counts": "State → number.",
    "created": "When it was taken.",
    "daemon": "The daemon.",
    "daemon_running": "Whether a daemon runs on this state directory.",
    "digest": "Digest of what it was made of.",
    "ended": "When it ended; null while it has not.",
    "epoch": "Epoch of the training.",
    "evaluation": "The last evaluation's figures.",
    "export": "Id of the export.",
    "exports": "How many were looked at.",
    "features": "",
    "files": "Its files.",
    "findings": "What is wrong.",
    "folder": "Its folder.",
    "folders": "What is installed of it, one for each version.",
    "free": "Free bytes.",
    "freed": "Bytes that are freed.",
    "healthy": "Whether it is healthy.",
    "id": "Its id.",
    "installed": "Whether it is installed, or when.",
    "job": "Id of the job.",
    "job_file": "The job file of the attempt.",
    "job_state": "State of the job.",
    "jobs": "Jobs, or how many.",
    "journal": "What the journal says.",
    "layout": "The layout.",
    "log": "Path of its log.",
    "loss": "Loss of the training.",
    "manifest": "",
    "message": "What it says.",
    "method": "`lora`, `full`, …",
    "missing": "What is missing.",
    "checkpoints": "What can be said of each.",
    "toolchains": "Name → what is known of each.",
    "available": "Whether it can be made here.",
    "size": "Bytes.",
    "probe": "What its probe answered.",
    "name": "Its name.",
    "needed": "Bytes that are needed.",
    "notes": "What is not wrong, and worth knowing.",
    "number": "Its number.",
    "packages": "Package → version.",
    "path": "Where it lies.",
    "paused": "Whether it is paused.",
    "pid": "Its process.",
    "problem": "What is wrong; null where nothing is.",
    "problems": "What is wrong.",
    "python": "Version of its Python.",
    "rank": "Rank of the LoRA.",
    "read": "Whether it is read.",
    "reason": "Why.",
    "remedy": "What to do about it.",
    "roots": "Directories that are watched.",
    "run": "Name of the run.",
    "running": "Whether it runs.",
    "seconds": "How long it took, or how long it is so.",
    "selected": "What `[select]` says of it.",
    "stage": "Name of the stage.",
    "started": "When it started; null before.",
    "state": "Its state, or its state directory.",
    "state_directory": "The state directory.",
    "status": "How it ended: `passed`, `partial`, …",
    "step": "Step of the training.",
    "strategy": "Way in which it was tried.",
    "target": "Folder of the export, or the service.",
    "text": "In words.",
    "thread": "Name of the thread.",
    "variants": "Name → what is known of each variant.",
    "verdict": "The verdict.",
    "version": "Version of ckptd.",
    "wanted": "Whether it is exported.",
    "warning": "What is doubtful; null where nothing is.",
    "warnings": "What is doubtful, as sentences.",
    "why": "Why.",
    "best_metric": "The trainer's best metric so far.",
    "configuration": "When it was last read, and what was wrong with it.",
    "kind": "What the answer is about.",
    "last_seen": "When it was seen last.",
    "first_seen": "When it was seen first.",
    "lived": "Seconds between the two.",
    "architecture": "As the kernel says it.",
    "vendor": "Who made it.",
    "model": "What it is called.",
    "processor": "This machine's processor.",
    "incomplete": "Directories that are quiet but not complete.",
    "current": "Whether it is up to date.",
    "fraction": "How much is done, 0 to 1.",
    "error": "Why it failed; null where it did not.",
    "outcome": "How it ended.",
    "estimate": "Bytes.",
    "waiting": "How many wait.",
    "unreadable": "What can't be read, and why.",
}
"""What a field of this name means where its class does not say."""
_HEAD = """# Exit codes and answers for programs

What a script may rely on. Made by `python -m tests.words.answers` from the code; a test holds the two equal.

Under `--json` a verb prints one JSON value on standard output and nothing else there. An error is one sentence on standard error, with
`--json` too, and the exit code says of what kind it is. [Fault codes](fault-codes.md) are in the log and in the report. Names in
answers are stable for programs. Times are ISO 8601 in UTC, sizes are bytes, durations seconds, unless a field says something else; what
is not known is `null`.

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
    found = [shape for _, parts in ANSWERS.values() for shape in parts if not isinstance(shape, dict)]
    for shape in found:
        found += [kind for one in fields_of(shape).values() for kind in below(one.type) if kind not in found]
    return list(dict.fromkeys(found))


def _table(shape: Any) -> list[str]:
    said = {name: one.meaning.replace("|", r"\|") for name, one in fields_of(shape).items()}
    rows = [f"| `{name}` | {named_type(one.type)} | {said[name]} |" for name, one in fields_of(shape).items()]
    return ["| field | type | meaning |", "| --- | --- | --- |", *rows, ""]


def page() -> str:
    """The whole page."""
    lines = [_HEAD + "## Exit codes", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {meaning} |" for code, meaning in ALWAYS.items()]
    lines += ["", "What they say of some verbs more exactly:", "", "| verb | codes |", "| --- | --- |"]
    for verb, codes in EXITS.items():
        lines += [f"| `ckptd {' '.join(verb)}` | {'; '.join(f'**{code}** {said}' for code, said in codes.items())} |"] if codes else []
    lines.append("")
    lines += ["## Answers under `--json`", ""]
    for verb, (what, parts) in ANSWERS.items():
        named = ", ".join(named_type(part) for part in parts if not isinstance(part, dict))
        lines += [f"`ckptd {' '.join(verb)} --json`: {what}{': ' if named else ''}{named}.", ""]
        for part in parts:
            lines += _table(part) if isinstance(part, dict) else []
    lines += [
        "`report` of `ckptd export --json` is what `report.json` holds: [report.schema.json](report.schema.json).",
        "",
        "## Objects",
        "",
    ]
    for shape in shapes():
        lines += [f"### {shape.__name__}", "", " ".join((shape.__doc__ or "").split()), "", *_table(shape)]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
