"""One toolchain serves several formats, and a format may be checked by another toolchain than made it.

The formats are another package's; both toolchains are environments made here, each with a `fakelib` of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs.messages import Outcome, StageResult, Verdict
from daemon.contract.jobs.plan import check_of, spec_of
from daemon.operating.diagnosis.doctor import formats_here
from daemon.toolchains import registry
from daemon.toolchains.overview import describe
from daemon.toolchains.registry import Toolchains, command_in
from tests.toolchains.conftest import define
from tests.toolchains.test_checks import ENGINE, chain_in, made
from tests.workers.helpers import make_context

DECLARATION = """
from daemon.contract.formats.declaration import Format, Limits, Variant
from daemon.contract.formats.thresholds import Thresholds


def of(name, check):
    return Format(
        name=name, about="a table of logits", engines={name: {"causal": "tables.engine:TabledEngine"}},
        variants=(Variant(
            name, "tables.stage:run", 1, about="a table of logits", needs=("merge",), toolchain="maker",
            limits=Limits(name, cache=1e-3, padding=1e-3, toolchain=check), thresholds=Thresholds(agreement=1, kl=0, error=0),
        ),),
    )


FIRST, SECOND = of("first", "maker"), of("second", "checker")
"""
STAGE = """
import json
import shutil
import sys
from pathlib import Path

import fakelib
from handlers.child.progress import StageOutput


def run(context, reporter):
    shutil.copyfile(Path(context.inputs["merge"], "table.npy"), Path(context.staging, "table.npy"))
    Path(context.staging, "made.json").write_text(json.dumps({"by": fakelib.VERSION, "prefix": sys.prefix}))
    return StageOutput()
"""


@dataclass(frozen=True)
class Job:
    """A job's files, and its toolchains by name."""

    folder: Path
    chains: dict[str, Path]

    def run(self, stage: str, inputs: dict[str, Path]) -> StageResult:
        """Run a stage as the daemon does, in the toolchain that the plan names for it."""
        spec = spec_of(stage)
        base = make_context(self.folder / stage, stage, spec.entry)
        formats = tuple(catalog.catalog().entries)
        context = base.model_copy(update={
            "formats": formats, "inputs": {name: str(path) for name, path in inputs.items()}, "cache": str(self.folder / "cache"),
            "toolchain": spec.toolchain,
        })  # fmt: skip
        job = Path(context.result).with_name("job.json")
        job.parent.mkdir(parents=True)
        value = json.loads(context.model_dump_json())
        for name in ("first", "second"):
            value["work"]["validation"]["thresholds"][name] = {"agreement": 1, "kl": 1e-6, "error": 1e-3}
        job.write_text(json.dumps(value))
        command = [*command_in(self.chains[spec.toolchain], "handlers"), str(job)]
        done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        return StageResult.model_validate_json(Path(context.result).read_bytes())

    def export(self, name: str) -> tuple[dict[str, Any], dict[str, Any], Verdict]:
        """Make a format's variant and check it: what its stage and its engine saw around them, and the verdict."""
        result = self.run(name, {"merge": self.folder / "tabled"})
        assert result.outcome is Outcome.SUCCEEDED, result.fault
        artifact = self.folder / name / "staging"
        checked = self.run(f"check-{name}", {"reference": self.folder / "reference", name: artifact})
        assert checked.outcome is Outcome.SUCCEEDED, checked.fault
        return *(json.loads((artifact / f"{one}.json").read_text()) for one in ("made", "seen")), checked.checks[0].verdict  # type: ignore[return-value]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Both formats, and both toolchains installed."""
    package = tmp_path / "foreign" / "tables"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("format", DECLARATION), ("engine", ENGINE), ("stage", STAGE)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    before = catalog.catalog().entries
    entries = [FormatEntry(value=f"tables.format:{one}", root=str(package.parent)) for one in ("FIRST", "SECOND")]
    catalog.use([*before, *entries])
    chains = {name: chain_in(tmp_path / f"{name}-0123456789ab", f"of the {name}") for name in ("maker", "checker")}
    (tmp_path / "cache" / "toolchains").mkdir(parents=True)
    for name, folder in chains.items():
        (tmp_path / "cache" / "toolchains" / name).symlink_to(folder)
    made(tmp_path)
    yield Job(tmp_path, chains)
    catalog.use(before)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tables"]:
        del sys.modules[name]


@pytest.mark.slow
def test_one_toolchain_makes_two_formats_and_each_is_checked_where_it_says(job: Job) -> None:  # R7.1
    for name, checker in (("first", "maker"), ("second", "checker")):
        by, seen, verdict = job.export(name)
        assert by == {"by": "of the maker", "prefix": str(job.chains["maker"])}
        assert (seen["fakelib"], seen["prefix"]) == (f"of the {checker}", str(job.chains[checker]))
        assert verdict is Verdict.PASSED


def test_what_a_toolchain_serves_is_shown_and_each_is_missed_by_itself(
    job: Job, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R5.4
    for name in ("maker", "checker"):
        known = define(tmp_path / "definitions", wheels, name=name)
    monkeypatch.setattr(registry, "definitions", lambda: known)
    rows = describe(Toolchains(tmp_path / "state", known))
    assert rows["maker"].stages == ("first", "second", "check-first") and rows["checker"].stages == ("check-second",)
    here = formats_here(tmp_path / "state").variants
    assert (here["second"].toolchain, here["second"].check_toolchain) == ("maker", "checker")
    assert here["second"].lacks == ("the toolchain maker",) and "toolchain checker is not installed" in here["second"].check_needs[0]
    check = check_of("second")
    assert check is not None and (spec_of("second").toolchain, check.toolchain) == ("maker", "checker")
