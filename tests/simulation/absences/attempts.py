"""Attempts that take virtual seconds, read what their stage reads when they begin and when they end, and write down what that was.

What an error means is decided by the child's own entry, so that the whole way from a missing file to the runner's answer is the real one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.disk.data_files import DataPlace
from daemon.contract.disk.files import seal
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, Outcome, StageContext, StageResult, Verdict
from handlers.__main__ import _failed
from handlers.child.outside import Outside
from tests.simulation.files import WEIGHTS

NOTE = "file"
"""The file that each stage writes: what it was made of, and what the stages before it were made of."""
OF_TEXTS = ("reference",)
"""Stages that read prompts and data."""


@dataclass
class Made:
    """What a stage was made of: the texts of the bases, prompts and data that it and its inputs read, and of adapters."""

    base: set[str] = field(default_factory=set)
    prompts: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    adapter: set[str] = field(default_factory=set)

    def add(self, other: dict[str, Any]) -> None:
        """Take in what an input was made of."""
        for name, values in other.items():
            getattr(self, name).update(values)

    def to_json(self) -> str:
        """As a stage's file has it."""
        return json.dumps({name: sorted(values) for name, values in vars(self).items()})


class Attempt:
    """One attempt of a stage; `outside` is what it has seen as it began."""

    def __init__(self, context: StageContext, ends: float) -> None:
        self.context, self.ends = context, ends
        self.outside = Outside(context)
        self.made = Made()
        self._error: OSError | Permanent | None = None
        try:
            self._read()
        except (OSError, Permanent) as error:
            self._error = error

    def end(self) -> StageResult:
        """Read it all once more, write the stage's file, and say how it ended."""
        context = self.context
        try:
            if self._error is not None:
                raise self._error
            self._read()
            staging = Path(context.staging)
            (staging / NOTE).write_text(self.made.to_json())
            files = seal(staging)
        except (OSError, Permanent) as error:
            return _failed(error, context.stage, context.staging, self.outside)
        checked = context.stage.removeprefix("check-") if context.stage != "merged" else "pytorch"
        is_check = checked in context.inputs and checked != context.stage
        return StageResult(
            outcome=Outcome.SUCCEEDED, files=files, checks=(ArtifactCheck(variant=checked, verdict=Verdict.PASSED),) if is_check else ()
        )

    def _read(self) -> None:
        context = self.context
        if context.stage == "report":
            return
        for folder in context.inputs.values():
            self.made.add(json.loads(Path(folder, NOTE).read_text()))
        self.made.adapter.add(Path(context.pin, WEIGHTS).read_bytes().hex()[-64:])
        for folder, _ in context.additions:
            (folder / WEIGHTS).read_bytes()
        if context.base:
            self.made.base.add(json.loads(Path(context.base, "config.json").read_text())["generation"])
            self.made.base.add(json.loads(Path(context.base, "tokenizer.json").read_text())["generation"])
        if context.toolchain:
            Path(context.cache, "toolchains", context.toolchain, "toolchain.json").read_bytes()
        if context.stage in OF_TEXTS:
            for name in ("prompts", "data"):
                value = getattr(context.work.validation, name)
                if value:
                    getattr(self.made, name).add(_text_of(name, Path(DataPlace.of(value).shown)))


def _text_of(name: str, path: Path) -> str:
    """What a file of texts says; as stages do, one that is not there is told by a code of its own."""
    try:
        return path.read_text()
    except FileNotFoundError:
        code = {"prompts": FaultCode.PROMPTS_NOT_FOUND, "data": FaultCode.DATA_NOT_FOUND}[name]
        raise Permanent(code, f"read the {name}", "there is no such file or folder", f"set validate.{name}", path=path) from None
