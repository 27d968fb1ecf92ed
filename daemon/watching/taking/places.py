"""Where a checkpoint's export goes: a folder that is nobody else's, in nobody else's, and reached through no link.

Called by `daemon.watching.taking.intake` when a job is entered. The names come from `output.naming`; what they would make equal, or put
one into the other, is told apart by a digest. The journal and the output are asked; `daemon.publishing.exchange.beneath` makes sure of it
again when the export is published, since the output may be changed by others meanwhile.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from daemon.checkpoints.parts import earlier_forms
from daemon.config.places.export_names import folded, marked, safe_part, safe_run
from daemon.config.places.output_owners import is_anothers, is_other_training, owner_of
from daemon.config.places.paths import Paths
from daemon.config.settings import Settings
from daemon.contract.disk.answers import ask
from daemon.contract.disk.export_layout import MANIFEST, holds_exports, manifest_of
from daemon.contract.faults.events import Event
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.values import digest_of
from daemon.journal.jobs import Place
from daemon.journal.journal import Journal
from daemon.system.logger import Logger

log = Logger("intake")

_STEP = re.compile(r"(?:step[-_. ]?)?\{step[^}]*\}")
FAILED = ".failed"
UNKNOWN = "none"
"""Stands in a name for what nobody knows."""
_ROUNDS = 64
_REMEMBERED = 4096
"""Names whose folded form is kept: each checkpoint that is taken is compared with all places that are given away."""
Key = tuple[str, ...]


class Takings(NamedTuple):
    """What the journal has given away."""

    runs: list[tuple[str, str]]
    """Root and name of every run that has had jobs, the earliest first."""
    folders: list[tuple[str, str]]
    """Job → its export's folder, of all that publish one."""
    gave_way: frozenset[str]
    """Runs of which a job was superseded."""


@dataclass(frozen=True)
class _Taken:
    """What has a place already. `depth`: the part of the path, below the output, that has to be another one; -1 for the last."""

    by: str
    depth: int = -1


@dataclass(frozen=True)
class Places:
    """Gives places, by one configuration and one journal."""

    settings: Settings
    journal: Journal
    paths: Paths
    lies_elsewhere: Callable[[str, str], bool] = lambda job, path: False
    """Whether a job's content lies in another directory than this path too."""

    def of(self, reference: CheckpointRef, takings: Takings) -> Path:
        """The export's folder: nobody else's, whatever `output.naming` makes equal. Said where the plain name is taken."""
        target, plain, taken = self._free(reference, takings)
        if taken is not None:
            event = "the export's plain name is another checkpoint's"
            log.warning(event, event_id=Event.EXPORT_PLACE_TAKEN, path=reference.path, taken=str(plain), by=taken, target=str(target))
        return target

    def would_be(self, reference: CheckpointRef, takings: Takings) -> Path:
        """What `of` gives, for a look; nothing is said."""
        return self._free(reference, takings)[0]

    def _free(self, reference: CheckpointRef, takings: Takings) -> tuple[Path, Path, str | None]:
        """The export's folder, its plain name, and who has taken that, if somebody has."""
        plain = target = target_of(self.settings, self.paths, reference, self._folder_name(reference, takings))
        top, taken = f"{self.paths.output}/", None
        others = [(job, _key_of(folder[len(top) :])) for job, folder in takings.folders if folder.startswith(top)]
        digest = reference.identity if reference.mixture else reference.digest
        for number in range(_ROUNDS):
            claim = self._taken(target, reference, others)
            if claim is None:
                break
            taken, parts = taken or claim.by, list(target.relative_to(self.paths.output).parts)
            if claim.depth in (-1, len(parts) - 1):
                parts[-1] = f"{plain.name}-{(digest if number < 1 else digest_of([digest, number]))[:8]}"
            else:
                parts[claim.depth] = marked(parts[claim.depth], reference.root, reference.run, str(number))
            target = self.paths.output.joinpath(*parts)
        return target, plain, taken

    def _taken(self, target: Path, reference: CheckpointRef, others: list[tuple[str, Key]]) -> _Taken | None:
        """What keeps the export from this folder, by the journal or by what lies there; None where it is free."""
        mine = _key(target.relative_to(self.paths.output).parts)
        near = {mine[0], mine[0] + FAILED, mine[0].removesuffix(FAILED)}
        for job, theirs in others:
            if theirs[0] in near and (depth := _clash(mine, theirs)) is not None and (owner := self._owner(job, target, reference)):
                return _Taken(owner, depth)
        return self._claimed(target, reference) or self._on_disk(target, reference)

    def _owner(self, job: str, target: Path, reference: CheckpointRef) -> str | None:
        """The path of another checkpoint, whose job this is; None where it is this one.

        A checkpoint that is written again at its path, or in another form of its step, takes over what was exported of it with the same
        additions, unless its content lies in another directory too.
        """
        other = self.journal.jobs.get(job)
        if other is None or other.checkpoint.identity == reference.identity:
            return None
        places = self.journal.sightings.places(job) or {other.checkpoint.path: ""}
        forms = (reference.path, *map(str, earlier_forms(Path(reference.path))))
        path = next((path for path in forms if path in places), None)
        rewritten = other.target == target and path is not None and other.checkpoint.mixture == reference.mixture
        return None if rewritten and path and not self.lies_elsewhere(job, path) else next(iter(places))

    def _on_disk(self, target: Path, reference: CheckpointRef) -> _Taken | None:
        path = self.paths.output
        parts = target.relative_to(path).parts
        for depth, part in enumerate(parts):
            path = path / part
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                return None
            if stat.S_ISLNK(mode):
                return _Taken(f"a link at {path}", depth)
            if depth < len(parts) - 1 and (not stat.S_ISDIR(mode) or os.path.lexists(path / MANIFEST)):
                return _Taken(f"the files at {path}", depth)
        if manifest := manifest_of(target):
            owner = reference.other_than(manifest)
            return _Taken(owner) if owner else None
        return _Taken(f"the exports below {target}") if holds_exports(target) else None

    def _claimed(self, target: Path, reference: CheckpointRef) -> _Taken | None:
        """What keeps the export from a folder in which another ckptd publishes another training of the same name.

        That of the same training is two daemons at one work: its job is refused with that sentence when it starts.
        """
        owner, folder = owner_of(target.parent, reference.run), target.parent
        if owner is None or not is_anothers(owner, self.paths, reference) or not is_other_training(owner, reference):
            return None
        depth = len(folder.relative_to(self.paths.output).parts) - 1
        return _Taken(f"the ckptd of {owner.state} on {owner.host}", depth) if depth >= 0 else None

    def _folder_name(self, reference: CheckpointRef, takings: Takings) -> str:
        """The run's name in its exports' folder: runs whose names are one to some file system must not publish over each other.

        Of them the one that came first keeps the plain name for as long as that run is there.
        """
        name = safe_run(reference.run, self.settings.output.naming)
        key = _key_of(name)
        for root, run in takings.runs:
            if (root, run) == (reference.root, reference.run):
                return name
            if _run_key(run, self.settings.output.naming) == key and _is_there(Path(root, run)):
                return f"{name}~{digest_of(reference.root if run == reference.run else [ascii(reference.root), ascii(reference.run)])[:6]}"
        return name


def takings_of(places: Sequence[Place]) -> Takings:
    """Return what is given away by the jobs' places, the earliest first."""
    return Takings(
        list(dict.fromkeys((place.root, place.run) for place in places)),
        [(place.job, place.target) for place in places if place.state != "superseded"],
        frozenset(place.run for place in places if place.state == "superseded"),
    )


def _is_there(run: Path) -> bool:
    """Whether a run's directory is there; where its file system does not answer it may be."""
    try:
        return ask(f"run {run}", run.is_dir)
    except TimeoutError:
        return True


def _key(parts: list[str] | Key) -> Key:
    return tuple(map(folded, parts))


@functools.lru_cache(maxsize=_REMEMBERED)
def _key_of(folder: str) -> Key:
    return _key(folder.split("/"))


@functools.lru_cache(maxsize=_REMEMBERED)
def _run_key(run: str, naming: str) -> Key:
    return _key_of(safe_run(run, naming))


def _clash(mine: Key, theirs: Key) -> int | None:
    """The depth at which two exports' folders would be one, or one be inside of the other, also as failed ones; None where neither is."""
    short = min(len(mine), len(theirs))
    if mine[: short - 1] != theirs[: short - 1]:
        return None
    ours, other = mine[short - 1], theirs[short - 1]
    if ours == other or ours == other + FAILED or other == ours + FAILED:
        return short - 1
    return None


def target_of(settings: Settings, paths: Paths, reference: CheckpointRef, run: str = "") -> Path:
    """The export's folder by `output.naming`; `run` where the run goes by another name there. What has no number is called `final`."""
    pattern = _STEP.sub("final", settings.output.naming) if reference.ending else settings.output.naming
    epoch = reference.metadata.get("epoch")
    name = pattern.format(
        run=run or safe_run(reference.run, settings.output.naming), step=reference.step, identity=reference.identity[:12],
        date=datetime.now(UTC).strftime("%Y-%m-%d"), model_name=safe_part(Path(reference.base_name or "").name or UNKNOWN),
        epoch=f"{epoch:g}" if isinstance(epoch, int | float) else UNKNOWN, metric=_metric(reference),
        quantization=settings.export.quantization or UNKNOWN,
    )  # fmt: skip
    return paths.output / name


def _metric(reference: CheckpointRef) -> str:
    """The loss that training knew of it, to four digits: of its last evaluation, else of its last step."""
    evaluation = reference.metadata.get("evaluation")
    evaluated = evaluation.get("eval_loss") if isinstance(evaluation, dict) else None
    value = reference.metadata.get("loss") if evaluated is None else evaluated
    return f"{value:.4g}" if isinstance(value, int | float) else UNKNOWN
