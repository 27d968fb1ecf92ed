"""A check once more, by `ckptd verify --deep`: of a published artifact, or of one that another program made, by the answers that an export
keeps of its live model.

Called by `handlers/__main__.py` for a job file that `daemon.operating.rechecking` writes, in the Python that the artifact's engine needs.
It is the check's own stage on those answers; the base, the checkpoint and the merge need not be there.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.recheck import ANSWERS_INPUT, FOREIGN
from handlers.child.progress import Reporter, StageOutput
from handlers.validate import check, merged
from handlers.validate.kept import archive


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Check the variant that the stage is named after. Raises Permanent where the answers can't be read."""
    reference = Path(context.temporary, "reference")
    reporter.progress(0.0, "unpacking the live model's answers")
    kept, of = archive.unpack(Path(context.inputs[ANSWERS_INPUT]), reference, foreign=FOREIGN in context.inputs)
    known = context.model_copy(update={"inputs": {**context.inputs, "reference": str(reference)}})
    output = merged.run(known, reporter) if context.stage == "merged" else check.run(known, reporter)
    if kept < of:
        output.warnings.append(f"The export keeps the live model's answers at {kept} of {of} positions, evenly spaced.")
    return output
