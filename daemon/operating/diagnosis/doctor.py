"""What this box can do: for `ckptd check` and `ckptd formats`. Looks at what is installed without importing it."""

from __future__ import annotations

import grp
import importlib.metadata
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from daemon.checkpoints.models.base_models import is_model
from daemon.checkpoints.pinning.additions import problems_of
from daemon.checkpoints.readable import closed_directory
from daemon.config.places.paths import StatePaths, not_writable, open_to_others
from daemon.config.settings import Settings
from daemon.contract import cpu, units
from daemon.contract.disk.answers import ask
from daemon.contract.faults.errors import Fault
from daemon.contract.formats.catalog import GROUP, catalog
from daemon.contract.formats.mistakes import alike
from daemon.contract.formats.targets import TARGETS, fitting, lacking, made_for
from daemon.contract.jobs.plan import check_of, plan, spec_of
from daemon.operating.diagnosis import packages
from daemon.operating.diagnosis.capacity import capacity_of
from daemon.operating.diagnosis.cluster import examine_cluster
from daemon.operating.diagnosis.declared_code import flaws
from daemon.operating.diagnosis.deliveries import doubts_of_deliveries, problems_of_deliveries
from daemon.operating.diagnosis.owners import taken_runs
from daemon.operating.diagnosis.readability import tried
from daemon.operating.diagnosis.tasks import problems_of_tasks
from daemon.operating.diagnosis.texts import problems_of_texts
from daemon.operating.diagnosis.trackers import doubts_of_trackers, problems_of_trackers
from daemon.operating.disks.advice import advice
from daemon.operating.disks.watch import places_of
from daemon.operating.monitoring.live import read_live
from daemon.publishing.telling.sending import fault_of_receiver
from daemon.running.rules.resume_keys import library_version
from daemon.system.box import free_disk, memory
from daemon.system.elsewhere import elsewhere
from daemon.system.filesystems.disks import nearest_existing, short_of_room
from daemon.system.filesystems.mounts import file_system_type, is_remote
from daemon.system.lock import is_locked
from daemon.toolchains.overview import ToolchainHere, costs, describe
from daemon.toolchains.registry import Toolchains

NO_DIRECTORY = "is a file, not a directory"
CHAIN = "the toolchain "
"""How a clause begins that names a toolchain which is not there."""


@dataclass(frozen=True)
class VariantHere:
    """Whether a variant can be made on this machine."""

    available: bool
    missing: tuple[str, ...]
    """Packages that are not installed."""
    about: str
    toolchain: str | None
    """The toolchain that it needs; None if it needs none."""
    check_toolchain: str | None
    """The toolchain that its check needs; None if that needs none."""
    lacks: tuple[str, ...]
    """What is missing, in words."""
    needs: tuple[str, ...]
    """The same, with the way to install it, as clauses."""
    check_needs: tuple[str, ...]
    """What is missing for its check, with the way to install it, as clauses; without it the variant is unverified or not published."""
    wrong: tuple[str, ...]
    """What is wrong in the package that declares it, as clauses."""
    package: str
    """Distribution that declares it, with its version: `ckptd 1.0`; if there is none, the module of the declaration."""
    targets: tuple[str, ...] = ()
    """The targets of `export.deploy` for which it is made."""
    also_for: tuple[str, ...] = ()
    """The targets for which the report may recommend it too."""


@dataclass(frozen=True)
class ProcessorHere:
    """The processor of this machine, and what a check on it can't prove for other processors."""

    architecture: str
    vendor: str
    model: str | None
    features: tuple[str, ...]
    """Instruction sets that decide which kernels the libraries use, with the names of the Linux kernel."""
    not_run: tuple[str, ...]
    """Integer kernels that a check on this machine can't run."""
    doubts: dict[str, str]
    """Variant → what is not proved for other processors."""


@dataclass(frozen=True)
class FormatsHere:
    """What can be made on this machine. The names are stable for programs."""

    variants: dict[str, VariantHere]
    problems: tuple[str, ...]
    """Declarations of formats that could not be used, as sentences."""
    targets: dict[str, tuple[str, ...]]
    """Target of `export.deploy` → the variants that are made for it; none where no installed format fits."""
    toolchains: dict[str, ToolchainHere]
    processor: ProcessorHere


@dataclass(frozen=True)
class Diagnosis:
    """What `ckptd check` found. The names are stable for programs."""

    facts: dict[str, str]
    """Label → text, for people."""
    problems: tuple[str, ...]
    """Why the daemon would not start, why every export would fail, or why a notification or a delivery would never arrive."""
    warnings: tuple[str, ...]


def formats_here(state: Path) -> FormatsHere:
    """What can be made with the toolchains of a state directory."""
    chains, rows, here, brought_by = Toolchains(state), {}, cpu.here(), _packages()
    for spec in catalog().variants.values():
        missing = sorted({name for name in (*spec_of("merge").libraries, *spec.libraries) if not library_version(name)})
        wrong = list(flaws(spec))
        lacks, needs = [*missing], [f"the packages {', '.join(missing)}; install them"] if missing else []
        if spec.programs and spec.program() is None:
            names = [name for name in spec.programs if not name.startswith("$")]
            lacks.append(f"the program {' or '.join(names)}")
            needs.append(f"the program {' or '.join(names)}, which is not on PATH; install it")
        for name in dict.fromkeys(filter(None, (spec.toolchain, spec.limits.toolchain))):
            if name not in chains.known:
                wrong.append(f"its toolchain {name!r} is not known; the names are {', '.join(chains.known) or 'none'}")
            elif name == spec.toolchain and (lacking := chains.lacking(name, f"make {spec.name}")):
                lacks.append(f"the toolchain {name}")
                needs.append(f"the toolchain {name}, which is {chains.state(name)}{_costs(chains, name)}; {lacking.remedy}")
        check = None if wrong else check_of(spec.name)
        unchecked = chains.lacking(check.toolchain, f"check {spec.name}") if check else None
        rows[spec.name] = VariantHere(
            available=not (lacks or wrong), missing=tuple(missing), about=spec.about, toolchain=spec.toolchain or None, lacks=tuple(lacks),
            needs=tuple(needs), package=brought_by[spec.name],
            check_toolchain=(check.toolchain or None) if check else None,
            check_needs=(f"{unchecked.cause}{_costs(chains, check.toolchain)}; {unchecked.remedy}",) if unchecked and check else (),
            wrong=tuple(wrong),
            targets=tuple(target for target in TARGETS if spec in made_for(target, catalog())),
            also_for=tuple(target for target in TARGETS if spec in fitting(target, catalog()) and spec not in made_for(target, catalog())),
        )  # fmt: skip
    processor = ProcessorHere(here.architecture, here.vendor, here.model, here.features, cpu.not_run_on(here), _doubts(here))
    targets: dict[str, tuple[str, ...]] = {target: tuple(spec.name for spec in made_for(target, catalog())) for target in TARGETS}
    return FormatsHere(rows, tuple(catalog().problems), targets, describe(chains), processor)


def _costs(chains: Toolchains, name: str) -> str:
    """What installing a toolchain that is not there takes, in brackets."""
    known = chains.known.get(name)
    if known is None or chains.state(name).startswith("installed"):
        return ""
    return f" (it {costs(known.fetched, int(known.disk), known.seconds)})"


def _packages() -> dict[str, str]:
    """Variant → the distribution that brings its declaration, with its version."""
    declared, rows = catalog(), dict[str, str]()
    brought = {point.value: point.dist for point in importlib.metadata.entry_points(group=GROUP)}
    for entry, declaration in zip(declared.entries, declared.formats, strict=True):
        dist = brought.get(entry.value)
        package = f"{dist.name} {dist.version}" if dist else entry.value.partition(":")[0]
        rows.update(dict.fromkeys((spec.name for spec in declaration.variants), package))
    return rows


def _doubts(here: cpu.Cpu) -> dict[str, str]:
    """Variant → what a check on this box's processor can't say about other ones."""
    return {spec.name: doubt for spec in catalog().variants.values() if (doubt := cpu.doubt(spec.arithmetic, here))}


def _unwritable(key: str, folder: Path) -> list[str]:
    """The problem with a folder that could not be made or written to; nothing is made to find out."""
    there = nearest_existing(folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    return [str(not_writable(key, folder, f"{there} can't be written by this user"))]


def _comes(need: str, here: FormatsHere, settings: Settings) -> bool:
    """Whether what a variant needs is a toolchain that is installed as soon as a stage waits for it."""
    name = need.removeprefix(CHAIN).split(" ")[0].rstrip(",")
    chain = here.toolchains.get(name) if need.startswith(CHAIN) else None
    return settings.toolchains.auto_install and chain is not None and chain.command is not None


def _by_itself(need: str) -> str:
    """The same without what a person would do."""
    return f"{need.partition(';')[0]}; it is installed before the first export that needs it (toolchains.auto_install)"


def _without_a_check(name: str, settings: Settings) -> str:
    return "be published unverified" if name in settings.validate.publish_unverified else "not be published"


def _without_room(settings: Settings) -> list[str]:
    """The disks on which nothing would be pinned or exported now, as they are and as a running daemon says."""
    paths = StatePaths(settings.state_directory)
    refused = {}
    if is_locked(paths.lock):
        refused = {shortage.folder: shortage.refused for shortage in read_live(paths.live).disks if shortage.refused is not None}
    shortages = short_of_room(places_of(settings, paths), refused=refused)
    return [f"Not enough disk space: {shortage.sentence()}. {advice(shortage, paths, settings.output.directory)}" for shortage in shortages]


def _readable_by_others(settings: Settings, config: Path | None) -> list[str]:
    """Who may read what only the daemon should: its state, URLs of notifications, and tokens."""
    problems = []
    if (mode := open_to_others(settings.state_directory)) is not None:
        problems.append(
            f"state.directory: others may read {settings.state_directory} (mode {mode:04o}), which contains pins of checkpoints; at its"
            " start the daemon makes it private, unless it contains other files: then `chmod 700` it, or set state.directory to a"
            " separate folder"
        )
    address = settings.page.address
    if address is not None and not address.path and settings.page.token is None and settings.page.token_file is None:
        problems.append(
            "page.listen: every user of this machine can read the page; set page.token_file, or listen on a socket (unix:/PATH)"
        )
    tokens = {"page.token_file": settings.page.token_file, "page.peer_tokens": settings.page.peer_tokens}
    problems += [
        f"{key}: others may read {file} (mode {mode:04o}), which contains tokens; `chmod 600` it"
        for key, file in tokens.items()
        if file is not None and (mode := open_to_others(file)) is not None and _read_by_more(file, mode, settings)
    ]
    in_file = any(target.url or target.webhook or target.heartbeat or target.has_password for target in settings.notify.targets)
    holders = [
        ("notify.urls", config if settings.notify.urls else None), ("notify.urls_file", settings.notify.urls_file),
        ("notify.targets", config if in_file and not settings.notify.urls else None),
        *((f"notify.{key}", file) for key, file in settings.notify.files),
    ]  # fmt: skip
    holders += [("deliver", config) for target in settings.deliver if target.has_secret_in_configuration][:1]
    secrets = {f"deliver.{target.name}.secret_file": target.secret_file for target in settings.deliver}
    problems += [
        f"{key}: others may read {file} (mode {mode:04o}), which contains a secret; `chmod 600` it"
        for key, file in secrets.items()
        if file is not None and (mode := open_to_others(file)) is not None and _read_by_more(file, mode, settings)
    ]
    problems += [
        f"{key}: others may read {file} (mode {mode:04o}), but such URLs contain keys; `chmod 600` it"
        for key, file in holders
        if file is not None and (mode := open_to_others(file)) is not None and _read_by_more(file, mode, settings)
    ]
    return problems


def _read_by_more(config: Path, mode: int, settings: Settings) -> bool:
    """Whether others than its owner and the service read the configuration, by its mode."""
    try:
        of_service = config.stat().st_gid == settings.state_directory.stat().st_gid != 0
    except OSError:
        of_service = False
    return bool(mode & (0o004 if of_service else 0o044))


def not_of_group(name: str) -> list[str]:
    """The problem with a group that this user may not give files to: every publication would fail."""
    if not name or os.geteuid() == 0:
        return []
    try:
        group = grp.getgrnam(name).gr_gid
    except KeyError:
        return [f"output.group: there is no longer a group {name!r} on this machine; set another group, or '' for none"]
    if group in (os.getegid(), *os.getgroups()):
        return []
    return [
        f"output.group: this user is not a member of {name!r} and can't give files to it; add the daemon's user to it with `usermod -aG"
        f" {name} USER`"
    ]


def _access_to(root: Path) -> tuple[Fault | None, bool, bool]:
    """What keeps this user out of a root, whether something is there, and whether that is a directory."""
    return closed_directory(root), os.path.exists(root), os.path.isdir(root)


def _meant(root: Path) -> Path | None:
    """The folder that a mistyped root may mean; None where none is like it."""
    missing = next(place for place in (root, *root.parents) if os.path.isdir(place.parent))
    try:
        with os.scandir(missing.parent) as entries:
            like = alike(missing.name, (entry.name for entry in entries if entry.is_dir()))
    except OSError:
        return None
    return missing.with_name(like) / root.relative_to(missing) if like else None


def _bases(settings: Settings) -> list[str]:
    """What is wrong with the folders of base models. Those that are closed to this user are left to `tried`, which asks as the service."""
    problems = []
    for folder in settings.base.search:
        if closed_directory(folder) is None and not os.path.isdir(folder):
            problems.append(f"base.search: {folder} {NO_DIRECTORY}" if os.path.exists(folder) else f"base.search: {folder} does not exist")
    for name, folder in settings.base.map.items():
        if closed_directory(folder) is None and not is_model(folder):
            problems.append(f"base.map: {name!r} → {folder} contains no model now")
    return problems


def _toolchains_of_keys(settings: Settings) -> list[str]:
    """Keys of the configuration that ask for a toolchain which is missing here; their stages would do without it."""
    chains, work, problems = Toolchains(settings.state_directory), settings.work, list[str]()
    for spec in plan(settings.variants):
        for key, value, name in spec.toolchain_if:
            if work.setting(key) == value and (fault := chains.lacking(name, f"make {spec.name}")):
                problems.append(f"{key} = {value!r}: {fault.cause}, and {spec.name} would be made without it; {fault.remedy}")
    return problems


def _same_names() -> list[str]:
    """The problem with other distributions in this environment that have a package of one of our names."""
    brought = importlib.metadata.packages_distributions()
    others = sorted({name for package in ("daemon", "handlers") for name in brought.get(package, ())} - {"ckptd"})
    return [
        f"{name} has a package with the same name as one of ckptd's, in the same environment: installing or removing one of them overwrites"
        " or deletes files of the other; install ckptd in a separate environment"
        for name in others
    ]


def examine(settings: Settings, config: Path | None = None) -> Diagnosis:
    """Look at the configuration, read from the file `config`, and this box."""
    problems: list[str] = []
    warnings = [] if config is not None else [
        "no configuration file was found: only the defaults, CKPTD_ variables and --set were checked; `ckptd init` writes a file"
    ]  # fmt: skip
    for key, folder in (("state.directory", settings.state_directory), ("output.directory", settings.output.directory)):
        problems += _unwritable(key, folder)
    problems += _without_room(settings)
    warnings += _readable_by_others(settings, config)
    warnings += settings.older
    problems += not_of_group(settings.output.group)
    here = formats_here(settings.state_directory)
    wanting = [(name, need) for name in settings.variants for need in here.variants[name].needs]
    problems += [f"export.variants: {name} needs {need}, or leave it out" for name, need in wanting if not _comes(need, here, settings)]
    warnings += [f"export.variants: {name} needs {_by_itself(need)}" for name, need in wanting if _comes(need, here, settings)]
    problems += [
        f"export.variants: {name} can't be made or checked: {flaw}; correct its package, or leave it out"
        for name in settings.variants
        for flaw in here.variants[name].wrong
    ]
    warnings += [
        f"export.variants: {name} can't be checked yet: {_by_itself(need)}" if _comes(need, here, settings) else
        f"export.variants: {name} can't be checked here and would {_without_a_check(name, settings)}: {need}"
        for name in settings.variants for need in here.variants[name].check_needs
        if here.variants[name].check_toolchain != here.variants[name].toolchain  # said of what makes it already
    ]  # fmt: skip
    warnings += _toolchains_of_keys(settings)
    warnings += problems_of_tasks(settings)
    warnings += [f"export.deploy: {why}" for why in lacking(settings.export.deploy, catalog()).values()]
    if not settings.watch.roots:
        warnings.append("watch.roots is empty: `ckptd run` would refuse to start, `ckptd export` works")
    for root in settings.watch.roots:
        try:
            barred, there, is_directory = ask(str(root), partial(_access_to, root))
        except TimeoutError:
            problems.append(f"watch.roots: the file system of {root} does not answer; look at the mount and its server")
            continue
        if barred is not None:
            problems.append(f"watch.roots: {barred.cause}; {barred.remedy}")
        elif not there:
            meant = _meant(root)
            warnings.append(
                f"the root {root} does not exist yet; did you mean {meant}?" if meant else f"the root {root} does not exist yet"
            )
        elif not is_directory:
            problems.append(f"watch.roots: {root} {NO_DIRECTORY}; give the directory below which trainings write")
        elif is_remote(file_system_type(root)) and settings.watch.backend == "inotify":
            warnings.append(f'the root {root} is a network file system, which gives no events; use watch.backend = "auto"')
    warnings += packages.unsuitable()
    warnings += catalog().problems
    warnings += _same_names()
    warnings += _bases(settings)
    warnings += taken_runs(settings)
    if (holder := elsewhere(settings.state_directory)) is not None:
        warnings.append(f"state.directory: {holder.works()}; a daemon that is started here is refused")
    problems += problems_of_texts(settings)
    reading = tried(settings)
    problems += reading.problems
    warnings += reading.warnings
    room = capacity_of(settings, reading.models)
    problems += room.problems
    warnings += room.warnings
    problems += [
        f"{receiver.place}: {fault}; correct it, or leave it out (the other services are still notified)"
        for receiver in settings.notify.receivers if (fault := fault_of_receiver(receiver))
    ]  # fmt: skip
    problems += problems_of_trackers(settings)
    warnings += doubts_of_trackers(settings)
    problems += problems_of_deliveries(settings)
    warnings += doubts_of_deliveries(settings)
    problems += [f"merge.add: {problem}" for problem in problems_of(settings.merge, settings.base)]
    cores = len(os.sched_getaffinity(0))
    threads = settings.limits.effective_threads
    if threads > cores:
        warnings.append(f"limits.threads = {threads} is more than the {cores} cores that this process may use; try {max(1, cores // 2)}")
    if settings.limits.jobs > threads:
        warnings.append(
            f"limits.jobs = {settings.limits.jobs}, but limits.threads = {threads} lets only {threads} run at once; each needs one thread"
        )
    workers = examine_cluster(settings)
    problems += workers.problems
    warnings += workers.warnings
    total, available = memory()
    facts = {
        "roots": ", ".join(map(str, settings.watch.roots)) or "none",
        "output": f"{settings.output.directory} ({units.size(free_disk(settings.output.directory))} free)",
        "state": f"{settings.state_directory} ({units.size(free_disk(settings.state_directory))} free)",
        "reads": reading.summary,
        **({"bases": reading.bases} if reading.bases else {}),
        "variants": ", ".join(settings.variants),
        **({"targets": ", ".join(f"{target.name} ({target.kind})" for target in settings.deliver)} if settings.deliver else {}),
        "toolchains": "; ".join(
            f"{name} is {row.state}" + ("" if row.installed else f" (`{row.command}`)") for name, row in here.toolchains.items()
        ),
        **({"adds": ", ".join(f"{adapter.weight:g} × {adapter.path}" for adapter in settings.merge.add)} if settings.merge.add else {}),
        **room.facts,
        **workers.facts,
        "memory": f"{units.size(available)} of {units.size(total)} free",
        "cores": f"{cores}, {settings.limits.effective_threads} for each child",
        **{name: library_version(name) or "missing" for name in ("torch", "transformers", "peft", "onnx", "onnxruntime")},
    }
    # Two looks may find the same thing: a root is asked about, and then searched.
    problems = list(dict.fromkeys(problems))
    return Diagnosis(facts, tuple(problems), tuple(dict.fromkeys(warning for warning in warnings if warning not in problems)))
