"""Stages run outside of the daemon, as the daemon starts them: for benchmarks that look at what a stage costs or makes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks import _common
from daemon.contract.jobs.messages import CheckpointRef, ChildLimits, StageContext
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import spec_of
from daemon.contract.jobs.processes import large_pages
from handlers.onnx.options import OnnxOptions

ENVIRONMENT = {large_pages.NAME: large_pages.added(os.environ.get(large_pages.NAME, ""))}
"""What the daemon adds to the variables of a stage's process."""
BASE = """
import json, sys
from pathlib import Path
from tests.models import make_base
make_base(Path(sys.argv[1]), **json.loads(sys.argv[2]))
"""


def make_base(folder: Path, **sizes: object) -> Path:
    """A Qwen3 with random weights and a tokenizer, made in a process of its own so that the caller stays small."""
    _common.run_child(_common.python("-c", BASE, str(folder), json.dumps(sizes)))
    return folder


def job_file(
    folder: Path, stage: str, inputs: dict[str, Path], pin: Path, *, base: Path | None = None, limits: ChildLimits,
    onnx: OnnxOptions | None = None, cache: Path | None = None,
) -> Path:  # fmt: skip
    """A job file as the daemon writes it; the stage's output goes to `folder/staging`."""
    for name in ("staging", "tmp"):
        (folder / name).mkdir(parents=True)
    reference = CheckpointRef(
        root=str(folder), run="bench", step=1, path=str(pin), layout="adapter", digest="0", method="LORA", base_name=str(base or pin)
    )  # fmt: skip
    context = StageContext(
        job="bench", stage=stage, entry=spec_of(stage).entry, attempt=1, checkpoint=reference, pin=str(pin),
        base=str(base) if base else None,
        inputs={name: str(path) for name, path in inputs.items()}, staging=str(folder / "staging"), result=str(folder / "result.json"),
        temporary=str(folder / "tmp"), cache=str(cache or folder / "cache"),
        work=Work(export=ExportOptions(), validation=ValidateOptions(), onnx=onnx or OnnxOptions()), limits=limits,
    )  # fmt: skip
    path = folder / "job.json"
    path.write_text(context.model_dump_json())
    return path
