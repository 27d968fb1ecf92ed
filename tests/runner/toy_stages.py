"""Stages that do in milliseconds what the heavy ones do in minutes: real files that follow from their inputs alone.

What a file holds depends on the checkpoint, on the settings that the plan names and on what the stages before wrote, so that
a wrong reuse shows. The `merge` writes three shards and goes on with those that an interrupted attempt left; `pytorch` places them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from pathlib import Path

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import fsync_file, sha256_file
from daemon.contract.disk.placing import place
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, StageContext, Verdict
from daemon.contract.jobs.plan import CHECK
from handlers.child.progress import Reporter, StageOutput

SHARDS = 3
WEIGHTS = "model.safetensors"
PAUSE = 0.02
SHARD_SECONDS = float(os.environ.get("TOY_SECONDS", "0.02"))
"""What each of the merge's shards takes."""
HOLD = os.environ.get("TOY_HOLD")
"""While this file exists the merge stays at its second shard, a safe point."""
TEXT = os.environ.get("TOY_TEXT", "")
"""What the checks say that they compared on."""
SWAP = os.environ.get("TOY_SWAP", ":").partition(":")
"""A stage, and a file that takes the place of the base's weights when that begins, and then is gone."""
PERPLEXITY: dict[str, float] = json.loads(os.environ.get("TOY_PERPLEXITY", "{}"))
"""Step → what the checks measure."""


def _by_text(perplexity: float) -> list[list[float]]:
    """[nats, tokens] of texts that are harder or easier at every step alike."""
    return [[40 * (math.log(perplexity) + hard), 40] for hard in (-0.2, -0.1, 0.0, 0.1, 0.2)]


def swap(stage: str, base: str | None) -> None:
    """Put the file of SWAP in the place of the base's weights if the stage is the one."""
    if stage == SWAP[0] and base and os.path.exists(SWAP[2]):
        os.replace(SWAP[2], Path(base, WEIGHTS))


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage that the context names."""
    if context.stage == "merged" or context.stage.startswith("check-"):
        return _check(context, reporter)
    return {"merge": _merge, "reference": _ask, "speed": _ask}.get(context.stage, _export)(context, reporter)


def _base(context: StageContext) -> str:
    """Of what base."""
    return sha256_file(Path(context.base) / WEIGHTS) if context.base else ""


def _merge(context: StageContext, reporter: Reporter) -> StageOutput:
    staging, kept = Path(context.staging), 0
    for number in range(SHARDS):
        shard = staging / f"model-{number}.bin"
        data = hashlib.sha512(f"{context.checkpoint.digest} {_base(context)} {number}".encode()).digest() * 64
        if shard.is_file() and shard.read_bytes() == data:
            kept += 1
            continue
        time.sleep(SHARD_SECONDS)
        shard.write_bytes(data)
        fsync_file(shard)
        failpoints.point(f"toy.shard-{number}")
        print(f"printed with shard {number}", file=sys.stderr, flush=True)
        reporter.progress(number / SHARDS, f"shard {number}")
        reporter.checkpoint()
        while number == 1 and HOLD and os.path.exists(HOLD):
            time.sleep(PAUSE)
            reporter.progress(number / SHARDS, f"shard {number}")  # again: what follows at once on another one is not passed on
            reporter.checkpoint()
    return StageOutput(figures={"resumed_files": kept})


def _export(context: StageContext, reporter: Reporter) -> StageOutput:
    reporter.progress(0.5, "working")
    time.sleep(PAUSE)
    if context.stage in os.environ.get("TOY_BROKEN", "").split(","):
        raise Permanent(FaultCode.UNSUPPORTED_ARCHITECTURE, f"make {context.stage}", "this toy can't be made", "leave it out")
    made_of = {
        name: [sha256_file(file) for file in sorted(Path(folder).iterdir())]
        for name, folder in context.inputs.items() if name in ("merge", "onnx")
    }  # fmt: skip
    opset = context.work.export.opset if context.stage.startswith("onnx") else None
    Path(context.staging, "model.json").write_text(json.dumps([context.stage, context.checkpoint.digest, made_of, opset]))
    for shard in sorted(Path(context.inputs["merge"]).glob("*.bin")) if context.stage == "pytorch" else ():
        place(shard, Path(context.staging) / shard.name)
    return StageOutput()


def _ask(context: StageContext, reporter: Reporter) -> StageOutput:
    time.sleep(PAUSE)
    Path(context.staging, "said.json").write_text(json.dumps([context.stage, context.checkpoint.digest, _base(context)]))
    return StageOutput(figures={"prompts": [TEXT]} if context.stage == "reference" and TEXT else {})


def _check(context: StageContext, reporter: Reporter) -> StageOutput:
    time.sleep(PAUSE)
    variant = context.stage.removeprefix(CHECK) if context.stage != "merged" else "pytorch"
    Path(context.staging, "check.json").write_text(json.dumps(variant))
    made = variant in context.inputs
    inexact = variant in os.environ.get("TOY_INEXACT", "").split(",")
    why = f"the divergence of {variant} is above the limit" if inexact else os.environ.get("TOY_REJECT")
    measured = PERPLEXITY.get(str(context.checkpoint.step))
    verdict = ArtifactCheck(
        variant=variant, verdict=Verdict.FAILED if why else Verdict.PASSED, reasons=(why,) if why else (), of_precision=inexact,
        figures={"perplexity": measured, "by_text": {"perplexity": _by_text(measured)}} if measured else {},
    )  # fmt: skip
    return StageOutput(checks=[verdict] if made else [])
