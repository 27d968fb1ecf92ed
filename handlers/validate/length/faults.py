"""What the figures of the long text say against an artifact, as sentences. Pure.

Called by `verdict`. What depends on the length is a fault of the structure and not of rounding, so that a step in the course of the errors
counts within the thresholds too.
"""

from __future__ import annotations

from daemon.contract.formats.declaration import Limits
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures, LongFigures
from handlers.validate.arithmetic.comparison import in_deviations

CLEAR, EXACT_CLEAR = 1.5, 5.0
"""Ratio from which on a step counts, of forms that round and of exact ones. Sound artifacts of small models have up to 1.26, and 2.1 where
their errors are below the least size."""
GROWN, STEP_BESIDE = 3.0, 0.75
"""Growth from the first to the last third of the text beside which a step of this ratio counts, of forms that round. Sound artifacts grow
up to 2.0 times."""
LEAST, EXACT_LEAST = 0.01, 1e-4
"""Mean |Δ| behind a step, in standard deviations, from which on it counts. fp16 has 0.003 where rotary positions change their scaling."""
FARTHER: tuple[tuple[float, float, float], ...] = ((3.0, 1.0, 0.0), (4.0, 0.5, 0.0), (4.0, 0.0, 2.5), (8.0, 0.0, 0.0))
"""(times, share, growth): the divergence of the long text may not be so many times that of the prompts and above this share of the limit,
where the errors grow so many times over the text. Sound artifacts have up to 2.4 times."""
LEAST_NATS = 0.005
"""Divergence below which it may be any number of times that of the prompts. fp16 has 0.0003 where rotary positions change their scaling."""
REMEDY = "export another variant: this one would compute wrongly in long conversations"


def faults(figures: CheckFigures, own: Limits, thresholds: Thresholds | None, *, alone: bool) -> list[str]:
    """Give what is wrong with the artifact on the long text. `alone`: nothing else is; else only what depends on the
    length is told."""
    long = figures.long
    if long is None or long.tokens is None or long.positions is None:
        return []
    problems = _structure(long, own, alone=alone) or (_distances(figures, long, own, thresholds) if thresholds and alone else [])
    return [f"on a long text of {long.tokens:,} tokens {problem}" for problem in problems]


def _structure(long: LongFigures, own: Limits, *, alone: bool) -> list[str]:
    unit, merged = long.logit_std or 0.0, long.merged_error_max_absolute
    since = "" if long.step_position is None else f"from position {long.step_position:,} on"
    stepped = (long.step_ratio or 0.0) >= CLEAR
    if own.merged is not None and merged is not None and (alone or stepped) and not (error := in_deviations(merged, unit)) <= own.merged:
        return [
            f"it differs {since if stepped else 'everywhere'} from the merged PyTorch model by {error:.3g} standard deviations of the"
            f" logits, above the limit {own.merged:.3g}"
        ]
    clear, least = (EXACT_CLEAR, EXACT_LEAST) if own.exact else (CLEAR, LEAST)
    ratio, grown = long.step_ratio or 0.0, long.growth or 0.0
    if (long.step_behind or 0.0) < least or not (ratio >= clear or (not own.exact and ratio >= STEP_BESIDE and grown >= GROWN)):
        return []
    size = f"nearly all of them are {ratio:.2g} times as large as nearly all before"
    if ratio < 1:
        size = f"they grow {grown:.2g} times over the text"
    seldom = "" if own.exact else "; rounding may too, where the training had shorter texts only"
    return [f"its errors are larger {since}: {size}; wrong positions, a lost cache or another window do this{seldom}"]


def _distances(figures: CheckFigures, long: LongFigures, own: Limits, thresholds: Thresholds) -> list[str]:
    faults = []
    agreement, kl = long.agreement_interval, long.kl_interval
    if agreement is not None and agreement[1] < thresholds.agreement and (long.kl is None or long.kl > thresholds.kl / 2):
        faults.append(f"its agreement is {long.agreement:.3g} (95 % up to {agreement[1]:.3g}), below the limit {thresholds.agreement:.3g}")
    if kl is not None and kl[0] > thresholds.kl:
        faults.append(f"its divergence is {long.kl:.3g} nats a position (95 % from {kl[0]:.3g}), above the limit {thresholds.kl:.3g}")
    # Of forms that round themselves, a fault may show in a few positions alone.
    elif figures.kl is not None and (nats := long.kl_without_ties if own.exact else long.kl) is not None and nats > LEAST_NATS:
        times, share, grown = nats / max(figures.kl, 1e-9), nats / max(thresholds.kl, 1e-9), long.growth or 0.0
        if any(times > most and share > part and grown >= growth for most, part, growth in FARTHER):
            faults.append(f"its divergence is {nats:.3g} nats a position, {times:.2g} times that on the prompts")
    if figures.rounded is None:  # of experts in 16 bits other errors are sound
        faults += _errors(long, own, thresholds.error)
    return faults


def _errors(long: LongFigures, own: Limits, limit: float) -> list[str]:
    """Give errors above the limit: beside the live model more than rounding the merge to 16 bits may make, beside the merged one any."""
    error, apart = long.error_without_ties, long.merged_error_max_absolute
    if not (error is not None and error <= limit):
        value, lone = "infinite" if error is None else f"{error:.3g}", f" at more than {long.ties} positions" if long.ties else ""
        return [f"its largest error is {value} standard deviations{lone}, above the limit {limit:.3g}"]
    if not long.ties or own.merged is not None or apart is None or (far := in_deviations(apart, long.logit_std or 0.0)) <= limit:
        return []
    return [f"its largest error beside the merged PyTorch model is {far:.3g} standard deviations, above the limit {limit:.3g}"]


def tied(long: LongFigures, thresholds: Thresholds) -> str | None:
    """Say that errors above the limit did not count, as a note; None where there are none."""
    if not long.ties or (long.error_max is not None and long.error_max <= thresholds.error):
        return None
    value = "infinite" if long.error_max is None else f"{long.error_max:.3g}"
    return (
        f"on the long text the largest error is {value} standard deviations, above the limit {thresholds.error:.3g}, and without at most"
        f" {long.ties} of {long.positions} positions it is {long.error_without_ties or 0.0:.3g}: rounding the merged weights to 16 bits"
        ' decides at a few positions; merge.dtype = "float32" keeps the live model\'s answers'
    )
