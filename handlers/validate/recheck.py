"""A check once more, by `ckptd verify --deep`: of a published artifact, or of one that another program made, by the answers that an export
keeps of its live model.

Called by `handlers/__main__.py` for a job file that `daemon.operating.rechecking` writes, in the Python that the artifact's engine needs.
It is the check's own stage on those answers; the base, the checkpoint and the merge need not be there. What is checked may come
from anybody: code in it is not run, unless a person trusts it.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.plan import check_of
from daemon.contract.jobs.processes.recheck import ANSWERS_INPUT, FOREIGN, TRUSTED
from handlers.child.progress import Reporter, StageOutput
from handlers.validate import check, merged
from handlers.validate.folders import code
from handlers.validate.kept import archive


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Check the variant that the stage is named after. Raises Permanent where the answers can't be read, or its files are code."""
    script = None if TRUSTED in context.inputs else _strange_script(context)
    reference = Path(context.temporary, "reference")
    reporter.progress(0.0, "unpacking the live model's answers")
    kept, of = archive.unpack(Path(context.inputs[ANSWERS_INPUT]), reference, foreign=FOREIGN in context.inputs)
    known = context.model_copy(update={"inputs": {**context.inputs, "reference": str(reference)}})
    output = merged.run(known, reporter) if context.stage == "merged" else check.run(known, reporter, scripts=script is None)
    if script is not None:
        output.warnings.append(f"Its scripts were not run, since {script} is not this ckptd's own: give --trust if you trust who made it.")
    if kept < of:
        output.warnings.append(f"The export keeps the live model's answers at {kept} of {of} positions, evenly spaced.")
    return output


def _strange_script(context: StageContext) -> str | None:
    """Give the script because of which none of the artifact's is run. Raises Permanent where its files are code themselves."""
    for variant in catalog().variants.values():
        stage = check_of(variant.name)
        if stage is None or stage.name != context.stage or variant.name not in context.inputs:
            continue
        folder = Path(context.inputs[variant.name])
        if (why := code.of_model(folder, variant.limits.engine)) is not None:
            remedy = "if you trust who made it, give --trust; else have it made again"
            raise Permanent(FaultCode.FOREIGN_CODE, f"check {variant.name} again", why, remedy, path=folder)
        return None if context.stage == "merged" else code.strange_script(folder)
    return None
