"""Which less quantized forms take the place of variants whose check failed. Pure, over the journal's facts alone.

Called by the runner, which adds the stages of such a form to the job, and by `daemon.contract.jobs.verdicts`, which judges and publishes
it. Both must give the same answer at any time, also after a restart and from a rebuilt journal: so nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.plan import CHECK, fallback, unquantized
from daemon.contract.jobs.terms import CheckTerms
from daemon.contract.light import dataclass


@dataclass(frozen=True)
class Step:
    """One step down: a variant whose check failed, and the form that takes its place."""

    asked: str
    """The variant of the configuration with which it began."""
    wanted: str
    """The one that failed: the same, or a form that took its place."""
    taken: str
    reason: str
    """Why `wanted` failed, the first reason of its check; of a form that took a place, also why it could not be made or checked."""


@dataclass(frozen=True)
class WayDown:
    """What follows from the checks so far."""

    steps: tuple[Step, ...] = ()
    """In the order of the variants asked for, each one's from the first to the last."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    """Variant asked for → why nothing further takes its place, though nothing has passed."""

    added: tuple[str, ...] = ()
    """The forms that nobody asked for, each once."""

    def chain(self, asked: str) -> tuple[str, ...]:
        """A variant asked for and the forms that took its place, one after the other."""
        return (asked, *(step.taken for step in self.steps if step.asked == asked))


def way_down(
    asked: Collection[str], checks: Mapping[str, ArtifactCheck], seconds: Mapping[str, float], options: CheckTerms,
    lost: Mapping[str, str] | None = None,
) -> WayDown:  # fmt: skip
    """The steps down that follow from the `checks` there are. `seconds`: stage → what its last attempt took; `lost`: variants that ended
    without a verdict (they could not be made, or not be checked) → why.

    A form is taken where the check of a variant failed for reasons of precision, as long as the limit of time allows it; not
    where that which the variant was made of, or the merged model, failed too, since then the fault is not in the quantization. Where the
    form taken is lost, the next one is tried: it may need less memory, or operators that this model can have. A variant *asked for* that is
    lost has no step: nothing was measured that a less quantized form would do better, and a retry may make it.
    """
    lost = lost or {}
    if options.on_failed_check != "fallback":
        return WayDown()
    steps: list[Step] = []
    stopped: dict[str, str] = {}
    wanted = set(asked)
    for first in asked:
        current, tried, spent = first, {first}, 0.0
        while (reason := _why_next(current, checks, lost if current != first else {})) is not None:
            following = fallback(current)
            if following is None or following in tried:
                stopped[first] = f"there is no form after {current}"
                break
            if spent > 60 * options.fallback_minutes and following not in checks:
                stopped[first] = f"the forms before it took more than the {options.fallback_minutes:g} minutes of validate.fallback_minutes"
                break
            steps.append(Step(first, current, following, reason))
            if following in wanted:
                break  # it is made anyway, and what follows it is its own
            tried.add(following)
            current = following
            spent += seconds.get(following, 0.0) + seconds.get(f"{CHECK}{following}", 0.0)
    return WayDown(tuple(steps), stopped, tuple(dict.fromkeys(step.taken for step in steps if step.taken not in wanted)))


def _why_next(variant: str, checks: Mapping[str, ArtifactCheck], lost: Mapping[str, str]) -> str | None:
    """Why a less quantized form is to be tried after this one; None where none is, or where this one is not decided yet."""
    check = checks.get(variant)
    inexact = check is not None and check.verdict is Verdict.FAILED and check.of_precision
    if not inexact and (variant not in lost or (check is not None and check.verdict is not Verdict.UNVERIFIED)):
        return None
    sources = {unquantized(variant), *(name for name, spec in catalog().variants.items() if "merged" in spec.traits)}
    if any(other.variant in sources and other.verdict is Verdict.FAILED for other in checks.values()):
        return None
    if check is not None and check.reasons:
        return check.reasons[0]
    return lost.get(variant, "it failed its check")
