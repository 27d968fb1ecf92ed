"""Which export `ckptd bench` measures, which of its variants, and where its page may go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.disk.export_layout import ANSWERS, MANIFEST, holds_exports, read_manifest
from daemon.contract.faults.errors import Fault, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.journal.states import told_state
from daemon.operating.monitoring.status import ids, job_meant
from daemon.publishing.verification import exports_below

OPERATION = "measure"
_OVER_BASE = "it runs over its base, which is not in the export"
_GIVE = "give the folder of an export, or an id from `ckptd list`"


@dataclass(frozen=True)
class Export:
    """A published export, as its manifest has it."""

    folder: Path
    manifest: Mapping[str, object]
    sizes: Mapping[str, Mapping[str, int]]
    """Variant → path in the export → bytes, of each of its files."""

    def text(self, name: str) -> str | None:
        """A text of the manifest."""
        value = self.manifest.get(name)
        return value if isinstance(value, str) else None


def locate(state: Path, wanted: str) -> tuple[Export, str | None]:
    """The export that a path or an id means, and the variant where the path leads into one. Raises UsageError where it is none."""
    path = Path(os.path.abspath(wanted))
    if not os.path.lexists(path) and ("/" not in wanted or ids(state, wanted)):
        return _read(_of_job(state, wanted)), None
    if not path.exists():
        raise UsageError(FaultCode.NO_SUCH_PATH, OPERATION, "there is no such path", "check the path", path=path)
    whole = Path(os.path.realpath(path))
    export = next((folder for folder in (whole, *whole.parents) if os.path.lexists(folder / MANIFEST)), None)
    if export is None:
        raise _no_export(path)
    inside = whole.relative_to(export).parts
    if inside and not (export / inside[0]).is_dir():
        raise UsageError(FaultCode.NOT_A_DIRECTORY, OPERATION, "it is a file", f"give the export's folder: {export}", path=path)
    return _read(export), inside[0] if inside else None


def _of_job(state: Path, wanted: str) -> Path:
    job = job_meant(state, wanted, OPERATION, _GIVE)
    if not os.path.lexists(Path(job.target) / MANIFEST):
        remedy = "wait until it has finished (`ckptd status`), or export the checkpoint again"
        cause = f"the export is not published: {told_state(job.activity)}"
        raise UsageError(FaultCode.NO_EXPORT, f"{OPERATION} {job.id}", cause, remedy)
    return Path(job.target)


def _no_export(path: Path) -> UsageError:
    remedy = _GIVE
    if path.is_dir() and holds_exports(path):
        latest = path / "latest"
        export = latest if os.path.lexists(latest / MANIFEST) else next(exports_below(path), None)
        remedy = f"give one of the exports in it, for example {export}" if export is not None else remedy
    return UsageError(FaultCode.NO_EXPORT, OPERATION, f"there is no {MANIFEST} in it or above it", remedy, path=path)


def _read(folder: Path) -> Export:
    try:
        manifest: Any = read_manifest(folder)
        sizes: dict[str, dict[str, int]] = {}
        for row in manifest["files"]:
            first, slash, _ = str(row["path"]).partition("/")
            if slash and first != ANSWERS:
                sizes.setdefault(first, {})[str(row["path"])] = int(str(row["size"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"its {MANIFEST} can't be read: {error if isinstance(error, OSError | ValueError) else 'it has no list of files'}"
        remedy = "run `ckptd verify` on the export; if it is damaged, export the checkpoint again"
        raise UsageError(FaultCode.NO_EXPORT, OPERATION, cause, remedy, path=folder) from None
    if not sizes:
        remedy = "look into its report.html, which says why, and export the checkpoint again"
        raise UsageError(FaultCode.NO_EXPORT, OPERATION, "the export has no variant", remedy, path=folder)
    return Export(folder, manifest, sizes)


@dataclass(frozen=True)
class Choice:
    """What of an export is measured."""

    variants: tuple[str, ...]
    faults: Mapping[str, Fault]
    """Of those of them that can't be."""
    notes: tuple[str, ...]
    """About those that nobody named and that are left out, as sentences."""
    peer: str | None
    """The merged model's folder."""
    no_peer: str | None
    """Why there is none, as a sentence."""


def choose(export: Export, named: Sequence[str]) -> Choice:
    """The variants to measure: those that are named, else all that are deployed by themselves.

    Raises UsageError for a name that the export's report does not know.
    """
    known, order = catalog().variants, list(catalog().variants)
    there = sorted(export.sizes, key=lambda name: order.index(name) if name in known else len(order))
    reported = _reported(export)
    if unknown := [name for name in named if name not in export.sizes and name not in reported]:
        cause, remedy = f"the export has no variant {unknown[0]!r}", f"name some of these: {', '.join(there)}"
        raise UsageError(FaultCode.BAD_OPTION, OPERATION, cause, remedy, path=export.folder)
    aside = {name: reason for name in there if (reason := _aside(name)) and not named}
    wanted = [
        *(name for name in there if name not in aside and (not named or name in named)),
        *(name for name in named if name not in there),
    ]
    faults = {name: why for name in wanted if (why := _obstacle(export, name, reported)) is not None}
    merged = next((name for name in there if name in known and "merged" in known[name].traits), None)
    damage = None if merged is None else _damage(export, merged)
    no_peer = "There is no PyTorch model in this export to compare with." if merged is None else None
    if damage is not None:
        no_peer = damage.sentence()
    return Choice(
        tuple(dict.fromkeys(wanted)), faults, tuple(f"{name} was left out: {reason}." for name, reason in aside.items()),
        None if no_peer else str(export.folder / str(merged)), no_peer,
    )  # fmt: skip


def _aside(name: str) -> str | None:
    """Why a variant is measured only where it is named."""
    spec = catalog().variants.get(name)
    if spec is None or spec.deploys in ("alone", "at its targets"):
        return None
    return _OVER_BASE if spec.deploys == "over its base" else f"it is made to look into the model; `ckptd bench PATH {name}` measures it"


def _obstacle(export: Export, name: str, reported: Mapping[str, str]) -> Fault | None:
    """Why a variant can't be measured."""
    operation, path = f"{OPERATION} {name}", str(export.folder / name)
    spec = catalog().variants.get(name)
    if name not in export.sizes:
        return Fault(
            code=FaultCode.ARTIFACT_MISSING, operation=operation, cause=reported.get(name) or "it was not published", path=path,
            remedy="look into the export's report.html, and export the checkpoint again",
        )  # fmt: skip
    if spec is None:
        return Fault(
            code=FaultCode.ENGINE_MISSING, operation=operation, cause="no format that is installed here makes it", path=path,
            remedy="install the package of its format; `ckptd formats` lists the variants that this machine knows",
        )  # fmt: skip
    if spec.deploys == "over its base":
        return Fault(
            code=FaultCode.BASE_NOT_FOUND, operation=operation, cause=_OVER_BASE, path=path,
            remedy="measure a variant with merged weights, for example pytorch",
        )  # fmt: skip
    return _damage(export, name)


def _damage(export: Export, name: str) -> Fault | None:
    """What a look at names and sizes finds."""
    for path, size in export.sizes[name].items():
        file = export.folder / path
        try:
            actual: int | None = os.stat(file).st_size
        except (OSError, ValueError):  # a name that no file can have
            actual = None
        if actual != size:
            has = "is missing" if actual is None else f"has {actual:,} bytes instead of {size:,}"
            return Fault(
                code=FaultCode.EXPORT_DAMAGED, operation=f"{OPERATION} {name}", cause=f"the file {path} {has}", path=str(file),
                remedy="export the checkpoint again; `ckptd verify` lists all that is damaged",
            )  # fmt: skip
    return None


def _reported(export: Export) -> dict[str, str]:
    """Variant → why it was not published, of those that the report names; "" where it does not say."""
    try:
        report = json.loads((export.folder / "report.json").read_bytes())
        return {str(artifact["variant"]): "; ".join(map(str, artifact.get("reasons") or ())) for artifact in report["artifacts"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def refuse_target(target: Path) -> None:
    """Raise UsageError where a page can't be written to `target`: nothing but its publication writes into an export."""
    folder, operation = target.parent, "use --html"
    if target.is_dir():
        raise UsageError(FaultCode.BAD_OPTION, operation, "it is a folder", "give the name of a file, for example bench.html", path=target)
    if not folder.is_dir():
        raise UsageError(FaultCode.NO_SUCH_PATH, operation, "there is no such folder", "make it, or give another file", path=folder)
    if any(os.path.lexists(above / MANIFEST) for above in (Path(os.path.realpath(folder)), *Path(os.path.realpath(folder)).parents)):
        cause = "it would be in an export, whose files stay as they were published"
        raise UsageError(FaultCode.BAD_OPTION, operation, cause, "give a file in another folder", path=target)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(FaultCode.NO_PERMISSION, operation, "this user can't write there", "give a file in another folder", path=folder)
