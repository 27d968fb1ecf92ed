"""Loads the configuration and says everything that is wrong with it at once, before anything starts.

Relative paths are relative to the configuration file, or to the working directory where there is none.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from daemon.config import layers, older_keys, suggestions
from daemon.config.deliver import targets
from daemon.config.environment import variable_for
from daemon.config.places import instances
from daemon.config.places.states import state_of
from daemon.config.settings import Settings, StateSettings
from daemon.config.sources import credentials_in, given_on_command_line, keep_secrets, option_for
from daemon.contract.disk.answers import real_path
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secrets import censored, keep, keep_whole, name_shown, shown
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.targets import TARGETS, lacking
from daemon.contract.jobs.plan import all_specs, variant_names

ELSEWHERE = ("(environment)", "(command line)")
"""What the name of a value's origin ends with where no file is to be changed."""
PAGE = "docs/configuration.md"
"""Where each key is described."""


class WrongValues(UsageError):
    """Keys or values of a configuration are wrong. `problems`: each as a line. `path`: the main file, if any."""

    def __init__(self, problems: Sequence[str], path: Path | None) -> None:
        of_file = any(not any(place in problem.partition(":")[0] for place in ELSEWHERE) for problem in problems)
        problems = [censored(problem) for problem in problems]
        listing = "\n".join(f"  {problem}" for problem in problems)
        count = f"{len(problems)} thing{'s are' if len(problems) != 1 else ' is'} wrong:\n{listing}\n"
        what = f"keys; {PAGE} describes each" if of_file else f"values; {PAGE} describes each key"
        super().__init__(FaultCode.CONFIG_INVALID, "use the configuration", count, f"change those {what}", path=path if of_file else None)
        self.problems = tuple(problems)

    @property
    def of_the_command(self) -> bool:
        """Whether an option of this command is wrong, and not only what it found."""
        return any("(command line)" in problem.partition(":")[0] for problem in self.problems)


def load(
    path: Path | None = None, *, need_roots: bool = False, ask_running: bool = False, sends: bool = True, files: layers.Files | None = None
) -> Settings:  # fmt: skip
    """Settings from the file (if any) and the environment, with absolute paths.

    `need_roots`: the caller is the daemon, or speaks for it, and that has nothing to do without a root. `ask_running`: the state is that of
    the daemon that runs on this configuration, if one does; the daemon itself does not ask. `sends`: the caller needs the URLs of
    notifications, also those in a file. `files`: what was read already; a pipe can be read once.
    Raises WrongValues, which lists every unknown key, wrong type and conflict by dotted path with a suggestion, and UsageError where a file
    can't be read.
    """
    files = layers.read(path) if files is None else files
    values = files.values
    merged = _merged(values)
    keep_secrets(merged)
    problems = [f"{place}: {NO_SECRET_HERE}" for place in credentials_in(merged)]
    problems += [*suggestions.unknown_options(Settings, given_on_command_line), *suggestions.unknown_environment(Settings, os.environ)]
    settings = None
    try:
        settings = Settings(**values)
    except ValidationError as error:
        named = {problem.partition(":")[0] for problem in problems}
        others = [problem for problem in suggestions.problems_of(error, Settings, merged) if not _was_reported(problem, problems)]
        problems += [problem for problem in others if problem.partition(":")[0] not in named]
        problems += _conflicts_of_the_rest(values, error, path, need_roots=need_roots)
    except ValueError as error:  # pydantic-settings: an environment value that can't even be parsed
        problems.append(re.sub(r"\s+", " ", censored(str(error))))
    if settings is not None:
        settings = _with_state(settings.anchored((path.parent if path else Path()).absolute()), path, ask_running=ask_running)
        problems += conflicts(settings, need_roots=need_roots)
        settings, unusable = _with_files(settings, needed=sends)
        problems += unusable
    if problems or settings is None:
        raise WrongValues([_with_source(problem, files) for problem in problems], path)
    settings._older = older_keys.notes(files)
    return settings


NO_SECRET_HERE = (
    "is an address of a service, or a key of one, which is not shown here; addresses of services belong into notify.urls or the file of"
    " notify.urls_file, and a path has no ://"
)
"""Said of a URL or a token that is the value of a key which is not meant for one."""


def _merged(values: dict[str, Any]) -> dict[str, Any]:
    """All values, not validated; those of the files alone where the environment can't be read."""
    try:
        return Settings.merged(values)
    except ValueError:
        return values


def _with_files(settings: Settings, *, needed: bool) -> tuple[Settings, list[str]]:
    """The settings with the secrets that files hold, of notifications, deliveries and the page, and what is wrong with those files."""
    problems = []
    try:
        settings = settings.model_copy(update={"notify": settings.notify.with_file(needed=needed)})
    except ValueError as error:
        problems.append(f"notify.{error}")
    try:
        settings = settings.model_copy(update={"page": settings.page.with_tokens(needed=needed)})
    except ValueError as error:
        problems.append(str(error))
    try:
        settings = settings.model_copy(update={"deliver": targets.complete(settings.deliver, needed=needed)})
    except ValueError as error:
        problems.append(str(error))
    keep_whole(secret for target in settings.deliver for secret in target.secrets)
    secrets = [secret for receiver in settings.notify.receivers for secret in (receiver.url, receiver.secret) if secret]
    keep([*secrets, *settings.page.tokens])
    return settings, problems


def state_despite(path: Path | None) -> Path | None:
    """Where the state of the daemon of a configuration lies that can't be used now; None where nothing tells for certain.

    The daemon that runs on it says where. Where none runs the configuration still does, if it can be parsed and what is wrong does not
    concern the state directory.
    """
    known = instances.known_state_of(path)
    if known is not None and option_for("state.directory") is None and variable_for("state.directory", Settings, os.environ) is None:
        return known
    try:
        files = layers.read(path)
        merged = Settings.merged(files.values)
        state = StateSettings.model_validate(merged.get("state", {}))
    except (UsageError, ValueError):
        return None
    if state.directory is None and set(merged) - set(Settings.model_fields):
        return None  # one of these may be the section with the directory, misspelt
    settings = Settings.model_construct(state=state).anchored((path.parent if path else Path()).absolute())
    return _with_state(settings, path, ask_running=True).state_directory


def used_before(file: Path | None, why: str, command: str, *, runs: bool) -> str:
    """What is said of a configuration that a daemon has read before, and that can't be used now. `command`: what lists its mistakes;
    `runs`: whether that daemon runs."""
    name, end = "" if file is None else f" {file}", "" if why.endswith("?") else "."
    if not runs:
        return (
            f"The configuration{name} can't be used as it is now: {why}{end} No daemon runs on its state directory, and none would start."
            f" Correct the configuration, then run `{command}`."
        )
    return (
        f"The configuration{name} can't be used as it is now: {why}{end} A running daemon continues with what it read before. Correct the"
        f" configuration, then run `{command}`."
    )


def _was_reported(problem: str, before: Sequence[str]) -> bool:
    """Whether a key that is wrong came from a variable or an option that was said to name no setting."""
    key = problem.partition(":")[0]
    option, variable = option_for(key), variable_for(key, Settings, os.environ)
    names = f"--set {option} {ELSEWHERE[1]}:" if option else f"{variable} {ELSEWHERE[0]}:" if variable else None
    return names is not None and any(other.startswith(names) for other in before)


def _with_state(settings: Settings, path: Path | None, *, ask_running: bool) -> Settings:
    """The settings with the state directory that the service and the verbs agree on."""
    given = option_for("state.directory") or variable_for("state.directory", Settings, os.environ)
    state = state_of(path, settings.state.directory, ask_running=ask_running and given is None)
    if state == settings.state_directory:
        return settings
    return settings.model_copy(update={"state": StateSettings(directory=state)})


def _with_source(problem: str, files: layers.Files) -> str:
    """A problem that begins with a key's dotted path; with what gave the value before it where that is not the main file."""
    key, colon, said = problem.partition(":")
    origin = layers.origin_of(key, files)
    main = str(files.each[0][0]) if files.each else None
    return problem if origin in (layers.DEFAULT, main) else f"{origin} for {key}{colon}{said}"


def _conflicts_of_the_rest(values: dict[str, Any], error: ValidationError, path: Path | None, *, need_roots: bool) -> list[str]:
    """Conflicts among keys whose values are valid on their own, so that one run shows everything that must be corrected."""
    merged = Settings.merged(values)
    for item in error.errors():
        section, *keys = (str(part) for part in item["loc"])
        if not keys:
            merged.pop(section, None)
        if keys and isinstance(merged.get(section), dict):
            merged[section].pop(keys[0], None)
    sections: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        value, default = merged.get(name), field.default
        sections[name] = type(default).model_validate(value) if isinstance(value, dict) and isinstance(default, BaseModel) else default
    settings = Settings.model_construct(**sections).anchored((path.parent if path else Path()).absolute())
    wrong = {".".join(map(str, item["loc"][:2])) for item in error.errors()}
    others = conflicts(settings, need_roots=need_roots, need_variants="export.deploy" not in wrong)
    return [problem for problem in others if problem.partition(":")[0] not in wrong]  # of a wrong key its default was looked at


def _no_formats() -> str:
    """What is wrong where not even ckptd's own formats are known."""
    here = Path(__file__).parents[2]
    return (
        f"export.variants: there is nothing to make, since no format is registered with this Python; ckptd in {here} was not installed by"
        f" pip, only found there. Install it: {sys.executable} -m pip install -e {here}"
    )


def conflicts(settings: Settings, *, need_roots: bool = False, need_variants: bool = True) -> list[str]:
    """Values that are each right but do not go together, each with a value that would. `need_variants`: something must be made."""
    if not variant_names():
        return [_no_formats(), *catalog().problems]
    problems = [
        f"{key}: is {value}, which is no number to count with; write one, for example 1e9 for no limit"
        for key, value in _not_finite(settings.model_dump())
    ]
    for name in settings.export.variants:
        if name not in variant_names():
            left_out = "".join(f"; {problem}" for problem in catalog().problems)
            instead = "it is a target: name it in export.deploy (or by --deploy) instead" if name in TARGETS else (
                suggestions.nearest(name, variant_names())
            )  # fmt: skip
            problems.append(f"export.variants: there is no variant {shown(name)}; {instead}{left_out}")
    if need_variants and not problems and not settings.variants:
        missing = lacking(settings.export.deploy, catalog()).values()
        problems += [f"export.deploy: {why}" for why in missing] or [
            'export.variants: nothing is left to make; name at least one, for example ["pytorch"]'
        ]
    problems += [
        f"validate.{key}.{name_shown(name)}: there is no such variant; {suggestions.nearest(name, variant_names())}"
        for key in ("limits", "thresholds")
        for name in getattr(settings.validate, key)
        if name not in variant_names()
    ]
    problems += [
        f"validate.publish_unverified: there is no variant {shown(name)}; {suggestions.nearest(name, variant_names())}"
        for name in settings.validate.publish_unverified
        if name not in variant_names()
    ]
    problems += [
        f"validate.tasks.{task.name}.variants: there is no variant {shown(name)}; {suggestions.nearest(name, variant_names())}"
        for task in settings.validate.tasks
        for name in task.variants
        if name not in variant_names()
    ]
    problems += targets.conflicts(settings.deliver, variant_names())
    tasks = [task.name for task in settings.validate.tasks]
    if settings.select.best_task and settings.select.best_task not in tasks:
        name = settings.select.best_task
        named = suggestions.nearest(name, ["trainer", "quality", *tasks])
        problems.append(f"select.best_by: there is no task {shown(name)} in [[validate.tasks]]; {named}")
    if settings.select.best_variant and settings.select.best_variant not in variant_names():
        name = settings.select.best_variant
        problems.append(f"select.best_variant: there is no variant {shown(name)}; {suggestions.nearest(name, variant_names())}")
    names_of_stages = [spec.name for spec in all_specs()]
    problems += [
        f"cluster.stages: no stage fits {shown(pattern)}; {suggestions.nearest(pattern, names_of_stages)}"
        for pattern in settings.cluster.stages if not any(fnmatchcase(name, pattern) for name in names_of_stages)
    ]  # fmt: skip
    if settings.select.policy == "every" and settings.select.every < 1:
        problems.append('select.every: must be at least 1 with select.policy = "every"; for example 500')
    if need_roots and not settings.watch.roots:
        problems.append('watch.roots: is empty, so there is nothing to watch; for example ["/data/runs"]')
    written = {"output.directory": settings.output.directory, "state.directory": settings.state_directory}
    if settings.pin.directory is not None:
        written["pin.directory"] = settings.pin.directory
    for root in settings.watch.roots:
        real_root = real_path(root)
        for key, folder in written.items():
            if lies_in(folder, root, real_root):
                beside = root.parent / f"{root.name}-{'exports' if key.startswith('output') else 'ckptd'}"
                problems.append(
                    f"{key}: {folder} lies inside the watched root {root}, where only trainers may write; for example {str(beside)!r}"
                )
    return problems


def lies_in(folder: Path, root: Path, real_root: Path) -> bool:
    """Whether a folder is in a root, or is that root, by its path or by where links lead. `real_root`: where those of the root lead."""
    return folder.is_relative_to(root) or Path(os.path.realpath(folder)).is_relative_to(real_root)


def _not_finite(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Dotted path and value of every number below that is infinite or none: JSON, in which jobs are written, has no such number."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _not_finite(item, f"{path}.{key}" if path else str(key))
