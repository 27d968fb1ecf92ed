"""The gate's own check of a mutant in this process, and its verdict with some of its checks taken out.

The functions are those of the stages `merged` and `check-VARIANT`, called as `tests.validate.bench` calls them; to these come what the
stages find out about graphs (`portability`) and about a form beside the model that its own weights give (`twins`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ArtifactCheck, ChildLimits, Verdict
from handlers.folder import examples
from handlers.models.files import read_json
from handlers.validate import findings
from handlers.validate.checks.examination import Examination
from handlers.validate.engines.registry import EXACT
from handlers.validate.files import expected, smaller
from handlers.validate.folders import portability
from handlers.validate.outside import example
from handlers.validate.twins import judging
from handlers.validate.twins.compare import compare
from handlers.validate.twins.messages import Order
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers.client import WorkerFailed
from tests.museum import checks
from tests.museum.checks import RUNS, Given
from tests.museum.exhibit import Exhibit
from tests.museum.hall import Hall
from tests.validate.bench import Bench


@dataclass(frozen=True)
class Seen:
    """What the gate found out about an artifact."""

    variant: str
    given: Given
    failure: WorkerFailed | None
    """Why it could not be run to the end."""

    def judged(self, without: Iterable[str] = ()) -> ArtifactCheck:
        """Return the verdict; `without`: checks by name that the gate does not have."""
        known, absent = checks.checks(), set(without)
        given = checks.without(self.given, *(known[name] for name in absent))
        if self.failure is not None and (RUNS not in absent or given.examination.findings):
            return unrunnable(self.variant, self.failure, given.examination.findings)
        if self.failure is not None:
            return ArtifactCheck(variant=self.variant, verdict=Verdict.PASSED)
        return judge(self.variant, given.limits, given.examination, given.thresholds)


def seen(hall: Hall, exhibit: Exhibit, scratch: Path) -> Seen:
    """Return what the gate sees of an exhibit's mutant, which is made in the new folder `scratch`."""
    mutant = scratch / "mutant"
    scratch.mkdir(exist_ok=True)
    exhibit.make(hall, exhibit.variant, mutant)
    bench = of_merge(hall.bench, mutant, scratch) if exhibit.merge else hall.bench
    return looked_at(hall, bench, exhibit.variant, mutant, merge=exhibit.merge)


def sound(hall: Hall, exhibit: Exhibit) -> Seen:
    """Return what the gate sees of the artifact that an exhibit's mutant was made of."""
    return looked_at(hall, hall.bench, exhibit.variant, hall.made("sound", exhibit.variant), merge=exhibit.merge)


def of_merge(bench: Bench, merged: Path, scratch: Path) -> Bench:
    """Return the bench of the same live model where `merged` is what the merge gave: its config.json is what others are compared with."""
    assert bench.reference.files is not None
    files = shutil.copytree(bench.reference.files, scratch / "files")
    wanted = expected.read(files)
    assert wanted is not None
    config = read_json(merged / "config.json", "read the merged model's configuration")
    (files / expected.FILE).write_text(wanted.model_copy(update={"config": config}).model_dump_json())
    return replace(bench, merged=merged, reference=replace(bench.reference, files=files))


def looked_at(hall: Hall, bench: Bench, variant: str, folder: Path, *, merge: bool) -> Seen:
    """Return what the gate sees of a folder."""
    entry, examination, failure = catalog().variants[variant], Examination(), None
    source = None if merge else hall.source(variant)
    try:
        hall.examined(bench, variant, folder, source, examination)
        if fault := smaller.fault(entry, folder, source):
            examination.findings.append(findings.weights(fault, variant))
        if (folder / examples.NAME).is_file() and (fault := _shown(bench, folder, examination)):
            examination.findings.append(findings.example(fault))
        _graphs(variant, folder, source, examination)
        if entry.limits.twin and hall.twins:
            _beside_its_twin(bench, variant, folder, examination)
    except WorkerFailed as error:
        failure = error
    limits, thresholds = EXACT if variant == "pytorch" else entry.limits, hall.thresholds(variant)
    return Seen(variant, Given(limits, examination, thresholds), failure)


def _shown(bench: Bench, folder: Path, examination: Examination) -> str | None:
    known = expected.read(bench.reference.files)
    first, tokens = bench.reference.samples[0], examination.prompts[0].tokens or []
    return example.check(folder, first.text, tokens, 1, expected.ends(known) if known else None)


def _graphs(variant: str, folder: Path, source: Path | None, examination: Examination) -> None:
    entry = catalog().variants[variant]
    if entry.arithmetic in ("float", "blocks"):  # nothing can overflow there, and the source was compared already
        return
    inspected = portability.check(folder, entry.arithmetic, source, nearest=True)
    if inspected.fault:
        examination.findings.append(findings.portability(inspected.fault, variant))


def _beside_its_twin(bench: Bench, variant: str, folder: Path, examination: Examination) -> None:
    entry, reference = catalog().variants[variant], bench.reference
    order = Order(
        form=entry.limits.twin, engine=entry.limits.engine, folder=str(folder), merged=str(bench.merged), task=bench.subject.task,
        sentence=bench.subject.sentence, threads=1, texts=judging.texts(reference, None, far=False),
        padded=judging.padded_batch(reference.samples), sides=tuple(reference.sides), arithmetic=entry.arithmetic, limits=ChildLimits(),
    )  # fmt: skip
    twin = judging.judged(compare(order), variant)
    if any(finding.aspect == "weights" for finding in examination.findings):
        twin.findings = [finding for finding in twin.findings if finding.aspect != "weights"]
    examination.add(twin)
