"""Up to which length of a text the artifacts were verified, in one sentence for all that were alike. Pure.

Called by `html` and `readme`.
"""

from __future__ import annotations

from daemon.contract.jobs.figures import LongFigures
from daemon.contract.jobs.messages import Verdict
from daemon.contract.language import lists
from daemon.contract.language.catalog import translated
from daemon.contract.language.recorded import translated_text
from handlers.report.model import Report


def sentences(report: Report) -> list[str]:
    """One sentence for each length, with the artifacts that passed their check on such a text; none of those that read no long text."""
    names: dict[str, list[str]] = {}
    for artifact in report.artifacts:
        long = artifact.measured.long
        if artifact.verdict is Verdict.PASSED and long is not None and (clause := sentence(long)):
            names.setdefault(clause, []).append(artifact.variant)
    said = translated("{variants}: {clause}.")
    return [said.format(variants=lists.names(those), clause=clause) for clause, those in names.items()]


def sentence(long: LongFigures) -> str:
    """What was verified, as a clause without its artifact; "" where no long text was read."""
    if long.tokens is None:
        return ""
    reached = [translated("verified up to {count:,} tokens").format(count=long.tokens)]
    if long.window:
        reached.append(_window(long.window < long.tokens).format(count=long.window))
    if long.original:
        reached.append(_original(long.original < long.tokens).format(count=long.original))
    why = [translated("no further, because {why}").format(why=translated_text(long.why))] if long.why else []
    return lists.sentences([lists.clauses(reached), *why])


def _window(passed: bool) -> str:
    return translated("window {count:,} passed") if passed else translated("window {count:,} not reached")


def _original(passed: bool) -> str:
    return translated("original length {count:,} passed") if passed else translated("original length {count:,} not reached")
