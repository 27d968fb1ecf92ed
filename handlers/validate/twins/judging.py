"""What a check says of an artifact beside the twin that its own stored weights give: findings, notes, figures.

Called by the stages `check-VARIANT`, once the artifact's worker has ended. The comparison itself runs in a process of its own (`compare`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from daemon.contract.formats.declaration import Variant
from daemon.contract.formats.stages import WITHOUT_TWIN
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.plan import fallback, unquantized
from handlers.toolchains import use
from handlers.validate import findings
from handlers.validate.checks.live.reference import Reference, padded_batch
from handlers.validate.checks.live.samples import Sample
from handlers.validate.findings import Compared
from handlers.validate.folders.programs import NoAnswer, asked
from handlers.validate.twins.messages import STEPS, Answer, Order, Rounding, Text

MODULE = "handlers.validate.twins.compare"
SECONDS = 3600
LONG = 224
"""Tokens of the long text."""
SHORT = 2
"""Texts beside it."""
SYSTEMATIC = 0.05
"""Largest deviation of the slope from 1, and largest common shift of a region of outputs in standard deviations, that rounding activations
may make: sound graphs stay below 0.01."""
NO_MEMORY = "there is too little memory for it; raise limits.memory_fraction, or use a larger machine"
_SAFE_ROTATIONS = ("default", "linear", "llama3")
"""Kinds of rotary embeddings whose angles depend on the position alone, not on how long a text is."""


def compared(context: StageContext, variant: Variant, engine: str, reference: Reference, length: int | None) -> Compared:
    """Compare an artifact. `engine` is what runs it; `length`: positions that it can address, None where it does not say."""
    if context.strategy == WITHOUT_TWIN:
        return not_compared(NO_MEMORY)
    if "merge" not in context.inputs:
        return Compared()  # in a check of a published export, which says what of it was not compared
    merged, subject, toolchain = context.inputs["merge"], reference.subject, use.own()
    order = Order(
        form=variant.limits.twin, engine=engine, folder=context.inputs[variant.name], merged=merged, task=subject.task,
        sentence=subject.sentence, threads=context.limits.threads, texts=texts(reference, length, far=_angles_are_fixed(Path(merged))),
        padded=padded_batch(reference.samples), sides=tuple(reference.sides),
        arithmetic=variant.arithmetic, toolchain=str(toolchain or ""), scratch=context.temporary,
        limits=context.limits.model_copy(update={"parent_pid": os.getpid(), "device": "cpu"}),
    )  # fmt: skip
    file = Path(context.temporary) / "twin.json"
    file.write_text(order.model_dump_json(), encoding="utf-8")
    try:
        answer = asked(MODULE, [str(file)], SECONDS, lambda text: Answer.model_validate_json(text.splitlines()[-1]), python=context.python)
    except NoAnswer as why:
        return not_compared(str(why))
    return judged(answer, variant.name)


def texts(reference: Reference, length: int | None, *, far: bool) -> list[Text]:
    """Give two of the samples, a long text of all, and, where positions are told, a short one at the end of what can be addressed."""
    causal, room = reference.subject.kind == "causal", length or LONG
    some = [_text(sample, causal, room) for sample in reference.samples[:SHORT]]
    joined = [token for sample in reference.samples for token in (*sample.ids, *(sample.tokens if causal else ()))]
    long = (joined * (LONG // max(1, len(joined)) + 1))[: min(LONG, room)]
    targets = () if causal else tuple((reference.samples[0].tokens * 8)[: STEPS * 2])
    split = reference.long is not None and reference.long.types is not None and len(set(reference.long.types)) > 1
    types = [int(2 * place >= len(long)) for place in range(len(long))] if split else None
    chosen = [*some, Text(ids=long, targets=targets, types=types)]
    if far and causal and length and length > LONG:
        chosen.append(Text(ids=some[0].ids, start=length - len(some[0].ids)))
    return chosen


def _text(sample: Sample, causal: bool, room: int) -> Text:
    if causal:
        return Text(ids=[*sample.ids, *sample.tokens][:room])
    return Text(ids=sample.ids, targets=tuple(sample.tokens), types=sample.types)


def _angles_are_fixed(merged: Path) -> bool:
    """Tell whether a model may be told positions that no text here reaches."""
    config = json.loads((merged / "config.json").read_text(encoding="utf-8"))
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotation.get("rope_type", rotation.get("type", "default")) if isinstance(rotation, dict) else ""
    return kind in _SAFE_ROTATIONS


def judged(answer: Answer, variant: str) -> Compared:
    """Give what an answer of the comparison means for a variant: that its stored weights are not merged ones rounded, that it computes
    another model than they give, that its activations are rounded with a systematic error; or a note, why nothing was compared."""
    if answer.left_out is not None:
        return not_compared(answer.left_out)
    reasons = [findings.weights(answer.weights, variant)] if answer.weights else []
    if not answer.tokens:
        return Compared(findings=reasons)
    error, figures = answer.error, CheckFigures(twin_error=answer.error)
    if error is None or error > answer.limit:
        far = "without limit" if error is None else f"by {error:.3g} standard deviations"
        way = f" ({answer.way})" if answer.way else ""
        reason = (
            f"its graph is not the model that its own weights give: in fp32 its outputs{way} differ {far} from position {answer.position}"
            f" of {answer.tokens} tokens on, above the limit {answer.limit:g}: its structure or its constants were changed"
        )
        reasons.append(findings.structure(reason, variant))
    if side := answer.padding_side:
        figures = figures.plus(twin_padding_error=answer.padding)
        if answer.padding is None or answer.padding > answer.limit:
            reasons.append(findings.structure(_ignored(answer.padding, side, answer.limit), variant))
    if (rounding := answer.rounding) is not None:
        figures = figures.plus(rounding_error=rounding.share, rounding_slope=rounding.slope)
        if systematic := _systematic(rounding):
            reasons.append(findings.rounding(systematic, fallback(variant) or unquantized(variant), variant))
    return Compared(figures, reasons)


def _ignored(error: float | None, side: str, limit: float) -> str:
    far = "without limit" if error is None else f"by {error:.3g} standard deviations"
    return (
        f"in a {side}-padded batch, computed in fp32 so that nothing is rounded, it differs {far} from single runs, above the limit"
        f" {limit:g}: it does not honour the attention mask or the positions"
    )


def _systematic(figures: Rounding) -> str | None:
    noise = 4 * figures.share / max(1, figures.rows) ** 0.5  # of the mean of so many rows, whose own differences are no systematic error
    if not abs(figures.slope - 1) <= SYSTEMATIC + noise / max(1, figures.outputs) ** 0.5:
        return (
            f"its outputs are {figures.slope:.3g} times those that it gives without rounding its activations, instead of once: the rounding"
            " takes too much away"
        )
    if not figures.shift <= SYSTEMATIC + noise:
        return (
            f"the rounding of its activations moves a part of its outputs by {figures.shift:.2g} standard deviations in the same direction:"
            " its scales or zero points do not fit"
        )
    return None


def not_compared(why: str) -> Compared:
    """Say that nothing was compared, as a note."""
    return Compared(notes=[f"its graph was not compared with the model that its own weights give: {why}"])
