"""All formats that are installed, ours and other packages', and what follows from their declarations.

Declarations are found by entry points of the group `ckptd.formats`, each `module:attribute` of a `Format`. One that can't be loaded, or
that does not fit the others, is left out and named in `problems`: somebody else's package must never keep the daemon from starting.
A child in a Python of its own can't see the entry points of ours: the job file lists them, and `use` takes them as they are.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from daemon.contract.formats.declaration import FileKind, Format, FormatEntry, Level, Variant
from daemon.contract.formats.entry_points import values_of
from daemon.contract.formats.stages import StageSpec
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.light import dataclass

if TYPE_CHECKING:
    from daemon.contract.values import Frozen

GROUP = "ckptd.formats"
OWN_STAGES = frozenset({"consolidate", "merge", "calibration", "reference", "merged", "speed", "report", "evaluate-live"})
FIRST_STAGES = frozenset({"merge", "calibration", "reference"})
"""Those of ours that a format can build on."""
OWN_SECTIONS = frozenset({
    "anchored", "base", "cluster", "deliver", "export", "formats", "jobs_at_once", "limits", "log", "merge", "merged", "metrics", "notify",
    "older", "output", "page", "pin", "report", "retention", "schedule", "select", "settings_customise_sources", "state", "state_directory",
    "toolchains", "validate", "validation", "variants", "watch", "work",
    "attempt", "config", "fault", "fault_once", "fault_trace",
})  # fmt: skip
"""With what else the settings are made of, and the variables CKPTD_… that are no key's."""
OWN_KEYS = {
    "export": frozenset({"variants", "quantization", "deploy", "opset", "target"}),
    "merge": frozenset({"dtype", "max_shard_size", "base", "verify", "fill_rows", "trust_remote_code"}),
    "validation": frozenset({
        "samples", "most_samples", "undecided", "new_tokens", "prompts", "data", "speed_tokens", "long_tokens", "bases",
        "publish_unverified", "on_failed_check", "fallback_minutes", "thresholds", "strictness", "limits", "tasks", "keep_answers",
    }),
}  # fmt: skip
"""Keys of ours that the output of a format's stage may depend on."""
OWN_ENGINES = frozenset({"live", "torch"})
"""Names of stages, of sections and of engines that no format may take."""


@dataclass(frozen=True, eq=False)
class Catalog:
    """The formats in plan order."""

    formats: tuple[Format, ...]
    entries: tuple[FormatEntry, ...]
    """Where each was found, for `use`."""
    problems: tuple[str, ...] = ()
    """One sentence for each declaration that was left out."""

    @functools.cached_property
    def variants(self) -> dict[str, Variant]:
        """Name → variant, in plan order."""
        return {variant.name: variant for declared in self.formats for variant in declared.variants}

    @functools.cached_property
    def stages(self) -> dict[str, StageSpec]:
        """Name → stage that variants are made of and that is not published, in plan order."""
        return {spec.name: spec for declared in self.formats for spec in declared.stages}

    @functools.cached_property
    def sections(self) -> dict[str, type[Frozen]]:
        """Section of the configuration → its class."""
        kinds = {declared.section: declared.options_class for declared in self.formats}
        return {section: kind for section, kind in kinds.items() if kind is not None}

    @functools.cached_property
    def quantized(self) -> dict[tuple[str, Level], str]:
        """(variant, level) → its smaller form."""
        return {(variant.form_of, variant.level): variant.name for variant in self.variants.values() if variant.form_of and variant.level}

    @functools.cached_property
    def engines(self) -> dict[str, dict[str, str]]:
        """Engine → kind of model → `module:class`."""
        return {name: dict(kinds) for declared in self.formats for name, kinds in declared.engines.items()}

    @functools.cached_property
    def data_engines(self) -> frozenset[str]:
        """Engines that read a folder as data, each as the format says that brings it."""
        return frozenset(name for declared in self.formats for name in declared.engines if name in declared.data_engines)

    @functools.cached_property
    def files(self) -> dict[str, dict[str, FileKind]]:
        """Variant → what its files decide, by pattern; nothing for a format that does not say it."""
        return {variant.name: dict(declared.files) for declared in self.formats for variant in declared.variants}

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """Module → distribution of the libraries that single formats load."""
        return {module: distribution for declared in self.formats for module, distribution in declared.modules.items()}

    @functools.cached_property
    def on_gpu(self) -> frozenset[str]:
        """Engines that run on a GPU."""
        return frozenset(variant.limits.engine for variant in self.variants.values() if variant.limits.gpu)

    @functools.cached_property
    def in_pytorch(self) -> frozenset[str]:
        """Engines that run a model of transformers in PyTorch."""
        return frozenset(variant.limits.engine for variant in self.variants.values() if variant.limits.pytorch)

    @functools.cached_property
    def thresholds(self) -> dict[str, Thresholds]:
        """Variant → its default thresholds."""
        return {variant.name: variant.thresholds for variant in self.variants.values()}


_used: tuple[FormatEntry, ...] | None = None


def use(entries: Iterable[FormatEntry]) -> None:
    """Take these declarations instead of looking for entry points; their packages become importable where they are not yet."""
    global _used
    _used = tuple(entries)
    catalog.cache_clear()
    for entry in _used:
        package = entry.value.partition(":")[0].partition(".")[0]
        if entry.root and not _root(package):
            sys.meta_path.append(_Package(package, entry.root))


class _Package:
    """Finds one package, and nothing that lies beside it: what else its folder holds may be for another Python."""

    def __init__(self, name: str, root: str) -> None:
        self._name, self._root = name, root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the package; its modules are found by way of the package itself."""
        return importlib.machinery.PathFinder.find_spec(fullname, [self._root]) if fullname == self._name else None


@functools.cache
def catalog() -> Catalog:
    """The formats, found once in a process."""
    pairs: list[tuple[FormatEntry, Format]] = []
    problems: list[str] = []
    for entry in _entries() if _used is None else _used:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what it prints is no answer of `--json`
                declared = pkgutil.resolve_name(entry.value)
            if not isinstance(declared, Format):
                raise TypeError(f"it is a {type(declared).__name__}, not a Format")
            wrong = None
            if not _is_ours(entry):
                from daemon.contract.formats.mistakes import mistakes  # which takes pydantic

                wrong = next(mistakes(declared), None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # another package's code, which may even call sys.exit
            from daemon.contract.formats.mistakes import in_one_line

            problems.append(f"the format {entry.value} was left out: {in_one_line(error)}")
            continue
        if wrong:
            problems.append(f"the format {declared.name} ({entry.value}) was left out: {wrong}")
            continue
        pairs.append((entry, declared))
    taken = _fitting(pairs, problems)
    return Catalog(tuple(declared for _, declared in taken), tuple(entry for entry, _ in taken), tuple(problems))


def _fitting(pairs: Iterable[tuple[FormatEntry, Format]], problems: list[str]) -> list[tuple[FormatEntry, Format]]:
    """The declarations that fit together, in plan order. Where two clash ours stays, else the one that comes first in plan order; what
    builds on one that is left out is left out too. Adds a sentence to `problems` for each."""
    left = sorted(pairs, key=lambda pair: (not _is_ours(pair[0]), pair[1].order, pair[1].name))
    place = 0
    while place < len(left):
        entry, declared = left[place]
        wrong = (
            None if _is_ours(entry) else next(clashes(declared, [other for _, other in left[:place]], [other for _, other in left]), None)
        )
        if wrong is None:
            place += 1
            continue
        problems.append(f"the format {declared.name} ({entry.value}) was left out: {wrong}")
        del left[place]
        place = 0  # one that fitted may have built on it
    return sorted(left, key=lambda pair: (pair[1].order, pair[1].name))


def _is_ours(entry: FormatEntry) -> bool:
    """Whether it is a format of this package: the tests look at those for mistakes, and not every command that is run."""
    return entry.value.partition(".")[0] == "handlers"


def _near(name: str, known: Iterable[str]) -> str:
    from daemon.contract.formats.mistakes import near

    return near(name, known)


def _entries() -> list[FormatEntry]:
    packages = {value: value.partition(":")[0].partition(".")[0] for value in sorted(values_of(GROUP))}
    roots = {package: _root(package) for package in packages.values()}
    return [FormatEntry(value=value, root=roots[package]) for value, package in packages.items()]


def _root(package: str) -> str:
    """The folder from which a package, or a module that is none, is imported; "" where there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.has_location and spec.origin else [])
    return str(Path(places[0]).parent) if places else ""


def clashes(declared: Format, before: Sequence[Format], everyone: Sequence[Format]) -> Iterator[str]:
    """Why a declaration does not fit: names that ckptd or those `before` it have, stages and engines that nobody has, a circle."""
    names = {spec.name for declaration in before for spec in (*declaration.stages, *declaration.variants)} | OWN_STAGES
    own = [spec.name for spec in (*declared.stages, *declared.variants)]
    if declared.section in OWN_SECTIONS:
        yield f"its section can't be named {declared.section!r}"
    if declared.name in {declaration.name for declaration in before}:
        yield "another format has that name"
    for name in own:
        if name.startswith("check-"):
            yield f"{name} is the name of a check"
        if name in names or own.count(name) > 1:
            yield f"there is another stage {name}"
    for declaration in before:
        if declared.options and declaration.section == declared.section and declaration.options_class is not declared.options_class:
            yield f"the format {declaration.name} also has a section [{declaration.section}]"
    for name in declared.engines:
        if name in OWN_ENGINES or any(name in declaration.engines for declaration in before):
            yield f"there is another engine {name}"
    yield from _same_places(declared, [spec for declaration in before for spec in declaration.variants])
    yield from _unknown_settings(declared, everyone)
    specs: dict[str, StageSpec] = {spec.name: spec for declaration in everyone for spec in (*declaration.stages, *declaration.variants)}
    published = {spec.name for declaration in everyone for spec in declaration.variants}
    engines = {name for declaration in everyone for name in declaration.engines} | OWN_ENGINES
    for stage in (*declared.stages, *declared.variants):
        for other in (*stage.needs, *stage.after):
            if other in OWN_STAGES - FIRST_STAGES:
                yield f"{stage.name} names the stage {other}, which runs after all formats"
            elif other not in specs and other not in FIRST_STAGES:
                yield f"{stage.name} names a stage {other}, which does not exist{_near(other, (*specs, *FIRST_STAGES))}"
    for spec in declared.variants:
        for other in filter(None, (spec.form_of, spec.fallback)):
            if other in OWN_STAGES - FIRST_STAGES:
                yield f"{spec.name} names the stage {other}, which runs after all formats"
            elif other not in published:
                yield f"{spec.name} names a variant {other}, which does not exist{_near(other, published)}"
        if spec.limits.engine not in engines:
            yield f"{spec.name} is checked by an engine {spec.limits.engine}, which does not exist{_near(spec.limits.engine, engines)}"
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter({name: (*spec.needs, *spec.after) for name, spec in specs.items()}).prepare()
    except CycleError as error:
        if circle := [name for name in error.args[1] if name in own]:
            yield f"{circle[0]} waits for itself, through {', '.join(map(str, error.args[1]))}"


def _same_places(declared: Format, before: Sequence[Variant]) -> Iterator[str]:
    """What one variant alone can be: the merged model itself, and the form that a level of another one stands for."""
    taken = list(before)
    for spec in declared.variants:
        if "merged" in spec.traits and (other := next((variant for variant in taken if "merged" in variant.traits), None)):
            yield f"{spec.name} can't be the merged model, which is {other.name}"
        same = next((variant for variant in taken if spec.level and (variant.form_of, variant.level) == (spec.form_of, spec.level)), None)
        if same:
            yield f"{spec.name} can't be {spec.form_of} in {spec.level}, which is {same.name}: leave its level out"
        taken.append(spec)


def _unknown_settings(declared: Format, everyone: Sequence[Format]) -> Iterator[str]:
    """Settings that a stage depends on and that nobody has."""
    kinds = {declaration.section: declaration.options_class for declaration in everyone}
    keys = {section: frozenset(kind.model_fields) for section, kind in kinds.items() if kind is not None} | OWN_KEYS
    for spec in (*declared.stages, *declared.variants):
        for path in spec.settings:
            section, *rest = path.split(".")
            if section not in keys or (rest and rest[0] not in keys[section]):
                hint = _near(rest[0], keys[section]) if section in keys else _near(section, keys)
                yield f"{spec.name} depends on a setting {path}, which does not exist{hint}"


def ordered(specs: Iterable[StageSpec]) -> list[StageSpec]:
    """Stages in an order in which each follows what it needs, else as they are given."""
    left, result = list(specs), list[StageSpec]()
    while left:
        waiting = {spec.name for spec in left}
        ready = next((spec for spec in left if not waiting.intersection((*spec.needs, *spec.after))), left[0])
        left.remove(ready)
        result.append(ready)
    return result
