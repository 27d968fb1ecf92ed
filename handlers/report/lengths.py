"""Up to which length of a text the artifacts were verified, in one sentence for all that were alike. Pure.

Called by `html` and `readme`.
"""

from __future__ import annotations

from daemon.contract.jobs.figures import LongFigures
from daemon.contract.jobs.messages import Verdict
from handlers.report.model import Report


def sentences(report: Report) -> list[str]:
    """One sentence for each length, with the artifacts that passed their check on such a text; none of those that read no long text."""
    names: dict[str, list[str]] = {}
    for artifact in report.artifacts:
        long = artifact.measured.long
        if artifact.verdict is Verdict.PASSED and long is not None and (clause := sentence(long)):
            names.setdefault(clause, []).append(artifact.variant)
    return [f"{', '.join(those)}: {clause}." for clause, those in names.items()]


def sentence(long: LongFigures) -> str:
    """What was verified, as a clause without its artifact; "" where no long text was read."""
    if long.tokens is None:
        return ""
    edges = ((long.window, "window"), (long.original, "original length"))
    reached = [f"{name} {edge:,} {'passed' if edge < long.tokens else 'not reached'}" for edge, name in edges if edge]
    why = [f"no further, because {long.why}"] if long.why else []
    return "; ".join([", ".join([f"verified up to {long.tokens:,} tokens", *reached]), *why])
