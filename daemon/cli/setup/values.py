"""The values of a first configuration: what options give, what is proposed, what a person answers."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import typer

from daemon.cli.views.markup import say_error
from daemon.contract import units
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.options import ExportOptions
from daemon.contract.language.catalog import language, to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import labelled
from daemon.installing import discovery, first_config
from daemon.installing.discovery import Proposal
from daemon.installing.places import output_beside

_QUESTIONS = {
    "watch.roots": to_translate("Directories below which trainings write"),
    "base.search": to_translate("Folders that hold base models"),
    "output.directory": to_translate("Folder for the exports"),
    "export.variants": to_translate("Variants to make, as `ckptd formats` names them"),
    "notify.urls": to_translate("Where to send notifications of exports, as Apprise URLs"),
}
"""What is asked, in this order."""
_ANY_ROOT = Path("/nonexistent")
"""Stands for a root while options are looked at without one."""


def look() -> Proposal:
    """Return what this machine's folders propose, and print it."""
    say_error(translated("Looking for trainings and models on this machine …"))
    proposal = discovery.look()
    for root in proposal.roots:
        ago = units.running(max(0.0, time.time() - root.newest))
        line = translated_plural(
            "{path}: {count} run, the newest checkpoint {ago} old", "{path}: {count} runs, the newest checkpoint {ago} old", root.runs
        )
        say_error("  " + line.format(path=root.path, count=root.runs, ago=ago))
    for folder in proposal.searched:
        say_error("  " + translated("{folder}: base models").format(folder=folder))
    for name, folder in proposal.mapped:
        say_error("  " + labelled(name, str(folder)))
    for name in proposal.missing:
        line = translated("{name}: a base that checkpoints name, but it was not found; give its folder with --base")
        say_error("  " + line.format(name=name))
    return proposal


def proposed(given: dict[str, Any], proposal: Proposal | None, *, system: bool, yes: bool) -> dict[str, dict[str, Any]]:
    """Return what was given by options, and for the rest what is proposed. Raises UsageError where no root is known."""
    roots = given["watch.roots"]
    proposed = [root.path for root in proposal.roots] if proposal else []
    if not roots and yes and not proposed:
        raise UsageError(
            FaultCode.CONFIG_MISSING, "make a configuration",
            f"no checkpoint was found below {', '.join(map(str, discovery.places()))}, so there is nothing to watch yet",
            "give the directory below which trainings write with --root; it does not have to exist yet",
        )  # fmt: skip
    if not roots and not yes:
        raise UsageError(
            FaultCode.NO_TERMINAL, "ask which directories to watch", "there is no terminal",
            "give them with --root" + (f", or use --yes to accept what was found: {', '.join(map(str, proposed))}" if proposed else ""),
        )  # fmt: skip
    values = {**given, "watch.roots": roots or proposed}
    for key in ("base.search", "output.directory", "export.variants"):
        values[key] = given[key] or _default(key, values, proposal, system=system)
    return _sections(values, proposal)


def _default(key: str, values: dict[str, Any], proposal: Proposal | None, *, system: bool) -> Any:
    """What is proposed for a key when the ones before it are known."""
    if key == "watch.roots":
        return [root.path for root in proposal.roots] if proposal else []
    if key == "base.search":
        return list(proposal.searched) if proposal else []
    if key == "output.directory":
        return output_beside(values["watch.roots"], system=system)
    return list(ExportOptions().variants) if key == "export.variants" else []


def _sections(values: dict[str, Any], proposal: Proposal | None) -> dict[str, dict[str, Any]]:
    """The values by section, without those that are empty or proposed for everybody; with the bases that lie in a cache."""
    chosen: dict[str, dict[str, Any]] = {"base": {"map": dict(proposal.mapped)} if proposal and proposal.mapped else {}}
    for name, value in values.items():
        section, _, key = name.partition(".")
        if value and (name != "export.variants" or tuple(value) != ExportOptions().variants):
            chosen.setdefault(section, {})[key] = value
    return chosen


def asked(given: dict[str, Any], proposal: Proposal | None, *, system: bool) -> dict[str, dict[str, Any]]:
    """Return what was given by options, and for the rest what is answered; an answer that can't be used is asked for again."""

    def refuse_unusable(values: dict[str, Any]) -> None:
        """Raise UsageError for values that can't be used. What is not known yet counts as proposed."""
        rest = {key: values.get(key) or given[key] or _default(key, values, proposal, system=system) for key in given}
        chosen = _sections({**rest, **values}, proposal)
        first_config.refuse_unusable(first_config.text(chosen), chosen)

    refuse_unusable({"watch.roots": given["watch.roots"] or [_ANY_ROOT]})  # else every answer would be refused for an option's sake
    say_error(translated("Give several values with spaces between them, and put quotes around a value that has spaces."))
    values: dict[str, Any] = {"notify.urls_file": given["notify.urls_file"]}
    for key, question in _QUESTIONS.items():
        if given[key] or (key == "notify.urls" and given["notify.urls_file"]):
            values[key] = given[key]
            continue
        proposed = _default(key, values, proposal, system=system)
        while True:
            answer = _words(translated(question), proposed if isinstance(proposed, list) else [proposed])
            if key == "watch.roots" and not answer:
                say_error(translated("Give at least one directory; it does not have to exist yet."))
                continue
            if key == "output.directory" and len(answer) != 1:
                say_error(translated("Give one folder, with quotes around it if it has spaces."))
                continue
            value: Any = answer if key in ("export.variants", "notify.urls") else paths(answer)
            value = value[0] if key == "output.directory" else value
            try:
                refuse_unusable({**values, key: value})
            except UsageError as error:
                say_error(translated_text(str(error)))
                continue
            values[key] = value
            break
    return _sections(values, proposal)


def _words(question: str, proposed: list[Any]) -> list[str]:
    """An answer of several words, quoted as in a shell; none for an empty one, or "none"."""
    default = shlex.join(map(str, proposed))
    while True:
        answer = typer.prompt(
            question if default else f"{question} [{translated('none')}]",
            default=default,
            show_default=bool(default),
            err=True,
            prompt_suffix=": " if language() == "en" else "：",
        )
        try:
            words = shlex.split(answer)
        except ValueError as error:
            say_error(translated("That can't be read as a list of words: {error}.").format(error=error))
            continue
        return [] if words in (["none"], [translated("none")]) else words


def paths(given: Any) -> list[Path]:
    """Return absolute paths, with `~` replaced, without empty ones."""
    return [Path(path).expanduser().absolute() for path in given if str(path)]
