"""What took the place of variants that were not exact enough, as the report tells it. Pure; the rule is `daemon.contract.jobs.fallbacks`'s.

Called by `handlers.report.content.build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daemon.contract import units
from daemon.contract.jobs import verdicts
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, StageFacts
from daemon.contract.language.catalog import translated
from daemon.contract.language.lists import after_each_other, clauses, sentences
from daemon.contract.language.recorded import translated_text
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
    reasons = {name: translated_text(by_variant[name].reasons[0]).rstrip(".。") for name in missed}
    of_form = translated("{variant}: {reason}")
    why = sentences(
        of_form.format(variant=name, reason=reasons[name]) if len(inexact) > 1 else reasons[name] for name in inexact
    )  # fmt: skip
    lost = translated("{variant} was tried next: {reason}.")
    said = [
        translated("{asked} was not exact enough ({why}).").format(asked=asked, why=why),
        *(lost.format(variant=name, reason=reasons[name]) for name in missed if name not in inexact),
    ]
    if taken is None:
        nothing = translated("Nothing takes its place: {why}.").format(why=translated_text(stopped)) if stopped else ""
        return after_each_other([*said, nothing or translated("Nothing takes its place.")])
    stage = stages.get(taken)
    if merits := _merits(by_variant[taken], stage.result.size if stage and stage.result else None, base_bytes):
        said.append(translated("{taken} takes its place: {merits}.").format(taken=taken, merits=clauses(merits)))
    else:
        said.append(translated("{taken} takes its place.").format(taken=taken))
    if kept := _read_choice(stage.result.figures if stage and stage.result else {}):
        said.append(translated_text(kept))
    return after_each_other(said)


def _merits(check: ArtifactCheck, size: int | None, base_bytes: int | None) -> list[str]:
    figures = figures_of(check.figures, ArtifactFigures) or ArtifactFigures()
    parts = []
    if figures.kl is not None:
        parts.append(translated("divergence {kl} nats").format(kl=units.number(figures.kl)))
    elif figures.agreement is not None:
        parts.append(translated("{share} agreement").format(share=units.percent(figures.agreement)))
    if size and base_bytes:
        parts.append(translated("{ratio} the base's weights").format(ratio=units.times(round(size / base_bytes, 4))))
    return parts


def _read_choice(figures: Mapping[str, Any]) -> str:
    """What the stage says of its choice, where it made one."""
    text = figures.get("told")
    return text if isinstance(text, str) else ""
