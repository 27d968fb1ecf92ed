"""Has the check of each variant made again, one after the other, by the stages that checked it first.

What these need beside the answers is taken from the export where it is there: the published merge (`pytorch`) stands for the merge, and is
checked first; a form's unquantized one, where it passed, for what the form was made of. The rest is left out, and `not_checked` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from daemon.config.settings import Settings
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Variant
from daemon.contract.formats.stages import LAYER_BY_LAYER, WITHOUT_TWIN, StageSpec
from daemon.contract.jobs.messages import Outcome, StageResult, Verdict
from daemon.contract.jobs.plan import check_of
from daemon.contract.jobs.processes.recheck import ANSWERS_INPUT, ENTRY, FOREIGN, TRUSTED, Rechecked
from daemon.operating.measuring.stages import Progress, Stages, Wanted
from daemon.operating.rechecking.subject import OPERATION, Subject
from daemon.toolchains.registry import Toolchains

_MEMORY = (FaultCode.MEMORY_LIMIT, FaultCode.MEMORY_UNEXPECTED, FaultCode.OUT_OF_MEMORY, FaultCode.MEMORY_PRESSURE)
_EXPORT_AGAIN = "export the checkpoint again"
_MAKE_AGAIN = "make it again of the same checkpoint, merged, or export the checkpoint with ckptd"
_OF_OTHERS = "another program made it, and may have rounded the weights in another way"
_NO_MERGE = "the merged model is not in the export (variant pytorch)"
_BAD_MERGE = "the export's merged model (variant pytorch) did not pass its own check"


class Rechecking:
    """The checks of one subject."""

    def __init__(self, settings: Settings, subject: Subject, scratch: Path, progress: Progress) -> None:
        self._subject, self._progress = subject, progress
        self._stages = Stages(settings, OPERATION, subject.export, subject.run, scratch, progress)
        self._toolchains, self._device = Toolchains(settings.state_directory), settings.limits.device
        self._merge: dict[str, str] = {}
        """What stands for the merge: its folder, and what its check found."""
        self._no_merge = _OF_OTHERS if subject.foreign else _NO_MERGE
        self._passed: dict[str, str] = {}
        """Variant → folder of what passed: with nothing else is anything compared."""

    def run(self) -> list[Rechecked]:
        """Check all variants. Raises KeyboardInterrupt where a person wants it to end."""
        wanted, beside = self._subject.folders, self._subject.beside
        merged = next((name for name in beside if _is_merged(name)), None)
        names = [*([merged] if merged and any(_reads_merge(name) for name in wanted) else []), *wanted]
        names = list(dict.fromkeys(names))
        checks = [self._checked(name, place, len(names)) for place, name in enumerate(names)]
        return [check for check in checks if check.variant in wanted]

    def _checked(self, name: str, place: int, of: int) -> Rechecked:
        folder = {**self._subject.beside, **self._subject.folders}[name]
        began, variant, spec = time.monotonic(), catalog().variants.get(name), check_of(name)
        obstacle = self._obstacle(name, variant, spec)
        if obstacle is not None or variant is None or spec is None:
            reason, remedy = obstacle or ("", "")
            return Rechecked(variant=name, folder=str(folder), verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=remedy)
        inputs = {**self._inputs(variant, folder), **({TRUSTED: str(folder)} if self._subject.trusted else {})}

        def said(done: float, what: str) -> None:
            self._progress.said((place + done) / of, f"{name}: {what}")

        said(0.0, "starting")
        result, staging = self._result(spec, inputs, said, alone=of == 1)
        value = self._value(name, folder, result, self._left_out(variant, inputs), time.monotonic() - began)
        passed = value.verdict is Verdict.PASSED
        if passed:
            self._passed[name] = str(folder)
        if _is_merged(name) and not self._subject.foreign:
            self._merge = {"merge": str(folder), "merged": str(staging)} if passed else {}
            self._no_merge = _NO_MERGE if passed else _BAD_MERGE
        return value

    def _obstacle(self, name: str, variant: Variant | None, spec: StageSpec | None) -> tuple[str, str] | None:
        """Why a variant can't be checked here, and what to do."""
        if (problem := self._subject.problem) is not None:
            return f"it could not be checked here: {problem.cause}", problem.remedy
        if variant is None or spec is None:
            return f"no format that is installed here declares {name}", "install the package that brings the format"
        if variant.deploys == "over its base":
            return "it runs over its base, which is not in the export", "check it where its base is, by exporting the checkpoint again"
        lacking: Fault | None = self._toolchains.lacking(spec.toolchain, f"check {name}") if spec.toolchain else None
        return None if lacking is None else (f"it could not be run here: {lacking.cause}", lacking.remedy)

    def _inputs(self, variant: Variant, folder: Path) -> dict[str, str]:
        subject = self._subject
        inputs = {ANSWERS_INPUT: str(subject.answers), variant.name: str(folder)}
        if _is_merged(variant.name):
            return {**inputs, "merge": str(folder), **({FOREIGN: str(folder)} if subject.foreign else {})}
        if subject.foreign:
            return {**inputs, FOREIGN: str(folder)}
        source = variant.form_of if variant.form_of in variant.needs else None
        return {**inputs, **self._merge, **({source: self._passed[source]} if source and source in self._passed else {})}

    def _result(
        self, spec: StageSpec, inputs: Mapping[str, str], said: Callable[[float, str], None], *, alone: bool
    ) -> tuple[StageResult, Path]:
        """Run the stage, where memory is short in the ways that take less."""
        ways = ["default", *([LAYER_BY_LAYER] if spec.layerwise else []), *([WITHOUT_TWIN] if spec.shortened and "merge" in inputs else [])]
        for number, strategy in enumerate(ways, 1):
            order = self._stages.order(Wanted(
                spec.name, ENTRY, inputs, self._subject.work, toolchain=spec.toolchain, strategy=strategy,
                device=spec.device(self._device), alone=alone,
            ))  # fmt: skip
            result = self._stages.run(order, said)
            assert result is not None  # it is never late
            if result.fault is None or result.fault.code not in _MEMORY or number == len(ways):
                return result, Path(order.context.staging)
        raise AssertionError("there is always a way")

    def _value(self, name: str, folder: Path, result: StageResult, left_out: tuple[str, ...], seconds: float) -> Rechecked:
        check = next((check for check in result.checks if check.variant == name), None)
        took = round(seconds, 3)
        if result.outcome is not Outcome.SUCCEEDED or check is None:
            fault = self._stages.fault(result)
            reason = f"it could not be checked here: {fault.cause}"
            return Rechecked(
                variant=name, folder=str(folder), verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=fault.remedy, not_checked=left_out,
                seconds=took,
            )  # fmt: skip
        failed, foreign = check.verdict is Verdict.FAILED, self._subject.foreign
        remedy = (_MAKE_AGAIN if foreign else _EXPORT_AGAIN) if failed else check.remedy
        notes = () if failed and foreign else tuple(warning.removeprefix(f"{name}: ") for warning in result.warnings)
        return Rechecked(
            variant=name, folder=str(folder), verdict=check.verdict, reasons=check.reasons, remedy=remedy, figures=check.figures,
            not_checked=left_out, seconds=took, notes=notes,
        )  # fmt: skip

    def _left_out(self, variant: Variant, inputs: Mapping[str, str]) -> tuple[str, ...]:
        """The comparisons that the check makes at an export and can't make here."""
        if _is_merged(variant.name):
            return () if self._subject.foreign else ("Its weights were not compared with those that the merge made.",)
        left_out = []
        if "merge" not in inputs:
            left_out.append(f"It was not compared with the merged model and its weights: {self._no_merge}.")
        if not self._subject.foreign and variant.form_of in variant.needs and variant.form_of not in inputs:
            left_out.append(f"Its weights were not compared with those of {variant.form_of}, which was not checked here, or did not pass.")
        return tuple(left_out)


def _is_merged(name: str) -> bool:
    variant = catalog().variants.get(name)
    return variant is not None and "merged" in variant.traits


def _reads_merge(name: str) -> bool:
    """Whether the check of a variant compares it with the merged model."""
    variant = catalog().variants.get(name)
    return variant is not None and variant.deploys != "over its base" and not _is_merged(name)
