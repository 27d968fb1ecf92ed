"""What took the place of variants that were not exact enough, as the report tells it. Pure; the rule is `daemon.contract.jobs.fallbacks`'s.

Called by `handlers.report.content.build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daemon.contract.jobs import verdicts
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, StageFacts
from handlers.report import units
from handlers.report.model import Replaced, StepDown


def replaced(facts: JobFacts, checks: tuple[ArtifactCheck, ...], base_bytes: int | None) -> tuple[Replaced, ...]:
    """The story of each variant asked for that other forms were tried for, in plan order."""
    down = verdicts.way_down_of(facts.work, verdicts.stages_of(facts))
    by_variant = {check.variant: check for check in checks}
    stages = {stage.name: stage for stage in facts.stages}
    stories = []
    for asked in dict.fromkeys([*(step.asked for step in down.steps), *down.stopped]):
        chain = down.chain(asked)
        steps = tuple(StepDown(wanted=step.wanted, taken=step.taken, reason=step.reason) for step in down.steps if step.asked == asked)
        last = by_variant.get(chain[-1])
        taken = chain[-1] if len(chain) > 1 and last is not None and verdicts.is_published(last, facts.work.validation) else None
        if not steps and taken is None and asked not in down.stopped:
            continue
        sentence = _sentence(asked, chain, taken, by_variant, stages, base_bytes, down.stopped.get(asked))
        stories.append(Replaced(asked=asked, steps=steps, taken=taken, sentence=sentence))
    return tuple(stories)


def _sentence(
    asked: str, chain: tuple[str, ...], taken: str | None, by_variant: Mapping[str, ArtifactCheck], stages: Mapping[str, StageFacts],
    base_bytes: int | None, stopped: str | None,
) -> str:  # fmt: skip
    missed = [name for name in chain if name != taken and name in by_variant and by_variant[name].reasons]
    inexact = [name for name in missed if by_variant[name].of_precision]
    why = "; ".join((f"{name}: " if len(inexact) > 1 else "") + by_variant[name].reasons[0].rstrip(".") for name in inexact)
    lost = "".join(f" {name} was tried next: {by_variant[name].reasons[0].rstrip('.')}." for name in missed if name not in inexact)
    start = f"{asked} was not exact enough ({why}).{lost}"
    if taken is None:
        return f"{start} Nothing takes its place{f': {stopped}' if stopped else ''}."
    stage = stages.get(taken)
    merits = _merits(by_variant[taken], stage.result.size if stage and stage.result else None, base_bytes)
    kept = _read_choice(stage.result.figures if stage and stage.result else {})
    return f"{start} {taken} takes its place{f': {merits}' if merits else ''}.{f' {kept}' if kept else ''}"


def _merits(check: ArtifactCheck, size: int | None, base_bytes: int | None) -> str:
    figures = figures_of(check.figures, ArtifactFigures) or ArtifactFigures()
    parts = []
    if figures.kl is not None:
        parts.append(f"divergence {units.number(figures.kl)} nats")
    elif figures.agreement is not None:
        parts.append(f"{units.percent(figures.agreement)} agreement")
    if size and base_bytes:
        parts.append(f"{units.times(round(size / base_bytes, 4))} the base's weights")
    return ", ".join(parts)


def _read_choice(figures: Mapping[str, Any]) -> str:
    """What the stage says of its choice, where it made one."""
    text = figures.get("told")
    return text if isinstance(text, str) else ""
