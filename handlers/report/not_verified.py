"""What was not verified: the report's list of gaps. Pure; called by `handlers.report.build`.

A check that is absent must not look like a check that passed, so each one that validation may leave out is looked
for by the figure that it would have given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.plan import find_variant
from daemon.contract.jobs.verdicts import was_made
from handlers.report.model import NotVerified

_LOGITS = (("agreement", "kl", "error_max"), "likeness to the live model")
_GREEDY = (("greedy_identical",), "greedy decoding")
_CACHE = (("cache_error_max_absolute",), "decoding with the KV cache")
_PADDING = (("padding_error_max_absolute",), "padded batches")
_SPEED = (("tokens_per_second",), "speed")


def not_verified(facts: JobFacts, checks: Iterable[ArtifactCheck]) -> tuple[NotVerified, ...]:
    """Everything that was made but not verified, with the reason."""
    made = {stage.name for stage in facts.stages if was_made(stage)}
    return tuple(gap for check in checks if check.variant in made for gap in _gaps_of(check, facts))


def _gaps_of(check: ArtifactCheck, facts: JobFacts) -> Iterator[NotVerified]:
    if check.verdict is Verdict.UNVERIFIED:
        yield NotVerified(what=f"{check.variant}: everything", why="; ".join(check.reasons) or "validation gave no reason")
        return
    figures = figures_of(check.figures, ArtifactFigures)
    variant = find_variant(check.variant)
    traits = variant.traits if variant else frozenset()
    wanted = [_LOGITS, _GREEDY, _SPEED, *([_CACHE] if "cache" in traits else []), *([_PADDING] if "padding" in traits else [])]
    for names, what in wanted:
        if figures and figures.has(*names):
            continue
        if what == "speed" and facts.work.validation.speed_tokens == 0:
            why = "validate.speed_tokens is 0"
        elif check.verdict is Verdict.FAILED:
            why = "validation ended at an earlier finding"
        else:
            why = "validation reports no figure for it"
        yield NotVerified(what=f"{check.variant}: {what}", why=why)
