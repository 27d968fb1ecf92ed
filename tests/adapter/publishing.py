"""Adapters published by the real stage after a real merge, and checked as the stage `check-pytorch-adapter` does, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from daemon.contract.formats.declaration import Limits
from daemon.contract.jobs.messages import ArtifactCheck
from daemon.contract.jobs.options import MergeOptions
from handlers.adapter import stage
from handlers.adapter.format import FORMAT
from handlers.child.progress import StageOutput
from handlers.merge import merge_adapter
from handlers.validate.checks.examination import examine
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.verdict import judge
from handlers.validate.workers.client import EngineWorker
from tests.merge import helpers
from tests.validate.bench import Bench, Direct, measured

(VARIANT,) = FORMAT.variants
LIMITS: Limits = VARIANT.limits


@dataclass(frozen=True)
class Published:
    """An adapter's published folder, with what it was made of."""

    base: Path
    adapter: Path
    merged: Path
    folder: Path
    output: StageOutput
    bench: Bench

    def check(self, folder: Path | None = None, values: str = "original") -> ArtifactCheck:
        """Compare a folder, by default the published one, with the live model."""
        spec = EngineSpec(
            engine="adapter", folder=str(folder or self.folder), base=str(self.base), base_values=values, task=self.bench.subject.task
        )
        direct = cast(EngineWorker, Direct(VARIANT.name, spec))
        outputs = self.bench.outputs(folder or self.folder)
        found = examine(direct, self.bench.reference, outputs, None, tokenizer=True, exact=True, progress=lambda fraction, message: None)
        return judge(VARIANT.name, LIMITS, found, VARIANT.thresholds)


def run(adapter: Path, base: Path, merged: Path, work: Path, /, **merge: Any) -> tuple[Path, StageOutput]:
    """The folder that the stage writes, and what it says."""
    context = helpers.context(work, adapter, base, merge=merged)
    context = context.model_copy(update={"work": context.work.model_copy(update={"merge": MergeOptions(**merge)})})
    return work / "staging", stage.run(context, helpers.reporter())


def publish(adapter: Path, base: Path, root: Path) -> Published:
    """Merge, publish, and measure the live model below the new folder `root`."""
    (root / "merged").mkdir(parents=True)
    merge_adapter(adapter, base, root / "merged")
    folder, output = run(adapter, base, root / "merged", root / "work")
    return Published(base, adapter, root / "merged", folder, output, measured(adapter, base, root / "merged", root / "scratch"))
