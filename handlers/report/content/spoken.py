"""What the journal's facts say in sentences, in the language of the page. Pure; `build` calls it. In English everything stays as it is."""

from __future__ import annotations

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, Fallback
from daemon.contract.language.recorded import translated_text


def check_in_words(check: ArtifactCheck) -> ArtifactCheck:
    """A check, its reasons and its remedy."""
    remedy = translated_text(check.remedy) if check.remedy else check.remedy
    return check.model_copy(update={"reasons": tuple(map(translated_text, check.reasons)), "remedy": remedy})


def fault_in_words(fault: Fault) -> Fault:
    """A fault, for sentences that are made of its parts."""
    said = {name: translated_text(getattr(fault, name)) for name in ("operation", "cause", "remedy")}
    return fault.model_copy(update=said)


def fallback_in_words(fallback: Fallback) -> Fallback:
    """A way that was taken instead of another."""
    return Fallback(**{name: translated_text(text) for name, text in fallback.model_dump().items()})
