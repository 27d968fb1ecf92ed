"""What was not verified, and what the verification can't show: the report's list of gaps, and of thresholds without force. Pure.

Called by `build`. A check that is absent must not look like a check that passed, so each one that validation may leave out
is looked for by the figure that it would have given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import ArtifactFigures, Likeness, LongFigures, figures_of
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.plan import find_variant
from daemon.contract.jobs.verdicts import was_made
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.language.lists import clauses, sentences
from daemon.contract.language.lists import names as list_names
from daemon.contract.language.recorded import translated_text
from handlers.report.model import NotVerified

_LOGITS = (("agreement", "kl", "error_max"), to_translate("likeness to the live model"))
_GREEDY = (("greedy_identical",), to_translate("greedy decoding"))
_CACHE = (("cache_error_max_absolute",), to_translate("decoding with the KV cache"))
_PADDING = (("padding_error_max_absolute",), to_translate("padded batches"))
_SPEED = (("tokens_per_second",), to_translate("speed"))


def not_verified(facts: JobFacts, checks: Iterable[ArtifactCheck]) -> tuple[NotVerified, ...]:
    """Everything that was made but not verified, with the reason."""
    made = {stage.name for stage in facts.stages if was_made(stage)}
    return tuple(gap for check in checks if check.variant in made for gap in _gaps_of(check, facts))


def _gaps_of(check: ArtifactCheck, facts: JobFacts) -> Iterator[NotVerified]:
    if check.verdict is Verdict.UNVERIFIED:
        why = sentences(check.reasons) or translated("validation gave no reason")
        yield _gap(check.variant, translated("everything"), why)
        return
    figures = figures_of(check.figures, ArtifactFigures)
    variant = find_variant(check.variant)
    traits = variant.traits if variant else frozenset()
    wanted = [_LOGITS, _GREEDY, _SPEED, *([_CACHE] if "cache" in traits else []), *([_PADDING] if "padding" in traits else [])]
    for names, what in wanted:
        if figures and figures.has(*names):
            continue
        if what == "speed" and facts.work.validation.speed_tokens == 0:
            why = translated("validate.speed_tokens is 0")
        elif check.verdict is Verdict.FAILED:
            why = translated("validation stopped at an earlier problem")
        else:
            why = translated("validation reports no figure for it")
        yield _gap(check.variant, translated(what), why)
    if figures and figures.long is not None and check.verdict is not Verdict.FAILED:
        yield from _gaps_at_length(check.variant, figures.long)
    for name, task in figures.tasks.items() if figures else ():
        if task.failed is not None:
            yield _gap(check.variant, translated("the task {name}").format(name=name), translated_text(task.failed))
    if variant and variant.elsewhere:
        yield _gap(check.variant, translated("other hardware"), translated_text(variant.elsewhere))


def _gaps_at_length(variant: str, long: LongFigures) -> Iterator[NotVerified]:
    why = translated_text(long.why) if long.why else translated("validation gave no reason")
    if long.tokens is None:
        yield _gap(variant, translated("long texts"), why)
        return
    beyond = (
        (long.window, translated("texts beyond its window of {count:,} tokens")),
        (long.original, translated("texts beyond the original length of its rotary positions of {count:,} tokens")),
    )
    for edge, what in beyond:
        if edge and edge >= long.tokens:
            yield _gap(variant, what.format(count=edge), why)


def _gap(variant: str, what: str, why: str) -> NotVerified:
    """Pages read the variant from what stands before the colon."""
    return NotVerified(what=f"{variant}: {what}", why=why)


def blindness(adapter: Likeness | None, variants: Iterable[str], thresholds: Mapping[str, Thresholds]) -> str | None:
    """The warning where the bare base meets limits as well. `adapter`: the bare base beside base + adapter; None for a full fine-tune."""
    if adapter is None:
        return None
    blind = [name for name in variants if name in thresholds and _meets(adapter, thresholds[name])]
    if not blind:
        return None
    parts = (
        (adapter.kl, translated("divergence {value:.3g} nats")),
        (adapter.agreement, translated("agreement {value:.3g}")),
        (adapter.error_max, translated("largest error {value:.3g} standard deviations")),
    )
    effect = clauses([text.format(value=value) for value, text in parts if value is not None][:2])
    return translated(
        "The adapter changes the base's outputs so little ({effect}) that the base without the adapter would meet the thresholds of"
        " {variants} too: for these, a passed check does not prove that the merge is right."
    ).format(effect=effect, variants=list_names(blind))


def _meets(adapter: Likeness, limits: Thresholds) -> bool:
    """Whether figures meet thresholds; one that a task doesn't have decides nothing."""
    agreement, kl, error = adapter.agreement, adapter.kl, adapter.error_max
    if error is None:
        return False
    return (agreement is None or agreement >= limits.agreement) and (kl is None or kl <= limits.kl) and error <= limits.error
