"""What must be known of an artifact's figures although it decides no verdict: what they can't show, and what is only just so. Pure.

Called by `verdict` once the figures are there. Each note is a sentence with the figures and what to do.
"""

from __future__ import annotations

from daemon.contract.jobs.figures import CheckFigures, Decision, Likeness
from daemon.contract.jobs.options import Undecided
from handlers.validate.arithmetic import growth

NOISE = 1e-4
"""Largest error, in standard deviations of the logits, that fp32 arithmetic in another order makes in sound models (measured: up to
0.00007, in a mixture of experts). Wrong positions make at least a hundred times that."""
OWN_DATA = "give prompts of the run's own data in validate.prompts"


def notes(figures: CheckFigures, base: Likeness | None, *, failed: bool) -> list[str]:
    """Give what the figures can't show. `base`: the base without the adapter beside the live model; None where there is none. `failed`: the
    artifact did, and the reasons say why; then there is nothing left to say."""
    return [] if failed else [*(_blind(figures, base) if base else []), *_growing(figures)]


_NAMES = {"kl": "KL", "agreement": "agreement", "perplexity": "perplexity ratio", "fine_tuning": "share of the fine-tuning"}
_WINS = {"figure": "the figure counts: ", "accept": "it counts as ", "reject": "it counts as "}


def undecided(decision: Decision, wins: Undecided, stopped: str | None, *, kept: bool) -> str:
    """Say that the texts do not decide whether a limit is kept, and what counts. `stopped`: why no more texts were read, as a clause."""
    more = "" if stopped is None else f", and no more were read, because {stopped}"
    return (
        f"{_NAMES[decision.limit]} {_number(decision.value)}{' nats' if decision.limit == 'kl' else ''}, {_between(decision)}:"
        f" undecided after {decision.texts} prompts whether it is within the limit {decision.allowed:.3g}{more}"
        f' (validate.undecided is "{wins}", so {_WINS[wins]}{"kept" if kept else "missed"})'
    )


def _between(decision: Decision) -> str:
    if decision.low is None or decision.high is None:
        return "without bounds"
    return f"certainly between {_span((decision.low, decision.high))}".replace(" to ", " and ")


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3g}"


def _blind(figures: CheckFigures, base: Likeness) -> list[str]:
    """Say that nearness does not show whose weights the artifact has, where the base is no farther from the live model."""
    if reason := alike(figures, base):
        return [
            f"the comparison is blind: {reason}. So it does not show that the fine-tuning is in the artifact{_share(figures)}; {OWN_DATA}"
        ]
    if base.agreement is None or figures.agreement is None or base.agreement < figures.agreement:
        return []
    greedy = ""
    if base.greedy_same_median is not None and figures.greedy_same_median is not None:
        if base.greedy_same_median < figures.greedy_same_median:
            return []
        greedy = " and decodes as many equal tokens"
    return [
        f"the choices are blind: the base without the adapter agrees with the live model at {100 * base.agreement:.3g} % of the"
        f" positions{greedy}, the artifact at {100 * figures.agreement:.3g} %. Only the probabilities tell them apart; {OWN_DATA}"
    ]


def alike(figures: CheckFigures, base: Likeness) -> str | None:
    """Say that the base is as near as the artifact by the first of these measures that the task has, with its figures."""
    if base.kl is not None and figures.kl is not None:
        sentence = f"the base without the adapter has KL {base.kl:.3g} from the live model, the artifact {figures.kl:.3g}"
        return sentence if base.kl <= figures.kl else None
    if base.cosine_mean is not None and figures.cosine_mean is not None:
        sentence = f"the vectors of the base have a mean cosine of {base.cosine_mean:.4g} with those of the live model"
        return f"{sentence}, the artifact's {figures.cosine_mean:.4g}" if base.cosine_mean >= figures.cosine_mean else None
    mine, theirs = base.error_mean_absolute, figures.error_mean_absolute
    if mine is None or theirs is None or mine > theirs:
        return None
    return f"the base without the adapter has a mean error of {mine:.3g}, the artifact {theirs:.3g}"


def _share(figures: CheckFigures) -> str:
    if figures.fine_tuning is None:
        return ""
    interval = f" (95 % {_span(figures.fine_tuning_interval)})" if figures.fine_tuning_interval else ""
    return f", though at the positions that it changes most, {figures.fine_tuning:.2g}{interval} of its effect is there"


def grows(figures: CheckFigures) -> str | None:
    """Say that the differences from the live model grow over the sequence, as a clause with figures; None where that is not certain."""
    interval = figures.growth_interval
    if figures.growth is None or interval is None or interval[0] <= growth.MARGIN:
        return None
    return f"the differences grow over the sequence, {figures.growth:.2g} times from the first to the last third (95 % {_span(interval)})"


def by_weights(decision: Decision) -> str:
    """Say that the weights decided what the texts left open."""
    return (
        f"{_NAMES[decision.limit]} {_number(decision.value)}, {_between(decision)}: {decision.texts} prompts do not decide it,"
        " because rounding changes more than the fine-tuning. The stored weights are the merged ones, rounded, so the fine-tuning is there"
        " as far as these bits hold it, and the limit counts as kept; a less quantized form shows it"
    )


POSITIONS = "as wrong positions make them (an offset, another rope_theta), or rounding to few bits"


def _growing(figures: CheckFigures) -> list[str]:
    """Of an artifact that passed; nothing where all of its errors are as small as those of sums in another order, which may grow."""
    if figures.error_max is not None and figures.error_max < NOISE:
        return []
    growth = grows(figures)
    return [f"{growth}, {POSITIONS}"] if growth else []


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3g} to {interval[1]:.3g}"
