"""What the figures of the long text say against an artifact, as sentences. Pure.

Called by `verdict`. What depends on the length is a fault of the structure and not of rounding, so that a step in the course of the errors
counts within the thresholds too.
"""

from __future__ import annotations

from daemon.contract.formats.declaration import Limits, Thresholds
from daemon.contract.jobs.figures import CheckFigures, LongFigures
from handlers.validate.arithmetic.comparison import in_deviations

CLEAR, EXACT_CLEAR = 1.5, 5.0
"""Ratio from which on a step counts, of forms that round and of exact ones. Sound artifacts of small models have up to 1.26, and 2.1 where
their errors are below the least size."""
LEAST, EXACT_LEAST = 0.01, 1e-4
"""Mean |Δ| behind a step, in standard deviations, from which on it counts. fp16 has 0.003 where rotary positions change their scaling."""
FARTHER, ABOVE = 4.0, 2.0
"""How many times the divergence of the prompts that of the long text may be where it is more than half the limit, and where it is above it.
Sound artifacts have up to 1.1."""
REMEDY = "export again; if it happens again, export another variant: this one would compute wrongly in long conversations"


def faults(figures: CheckFigures, own: Limits, thresholds: Thresholds | None) -> list[str]:
    """What is wrong with the artifact on the long text."""
    long = figures.long
    if long is None or long.tokens is None or long.positions is None:
        return []
    found = [*_structure(long, own), *(_distances(figures, long, thresholds) if thresholds else [])]
    return [f"on a long text of {long.tokens:,} tokens {one}" for one in found]


def _structure(long: LongFigures, own: Limits) -> list[str]:
    unit, merged = long.logit_std or 0.0, long.merged_error_max_absolute
    since = "" if long.step_position is None else f"from position {long.step_position:,} on"
    if own.merged is not None and merged is not None and not (error := in_deviations(merged, unit)) <= own.merged:
        where = since if (long.step_ratio or 0.0) >= CLEAR else ""
        return [
            f"it differs {where}{' ' * bool(where)}from the merged PyTorch model by {error:.3g} standard deviations of the logits, above"
            f" the limit {own.merged:.3g}"
        ]
    clear, least = (EXACT_CLEAR, EXACT_LEAST) if own.exact else (CLEAR, LEAST)
    if long.step_ratio is None or long.step_behind is None or long.step_ratio < clear or long.step_behind < least:
        return []
    return [
        f"its errors are larger {since}: nearly all of them are {long.step_ratio:.2g} times as large as nearly all before, as wrong"
        " positions, a lost cache or another window make them, and rounding does not"
    ]


def _distances(figures: CheckFigures, long: LongFigures, thresholds: Thresholds) -> list[str]:
    found = []
    agreement, kl = long.agreement_interval, long.kl_interval
    if agreement is not None and agreement[1] < thresholds.agreement and (long.kl is None or long.kl > thresholds.kl / 2):
        found.append(f"its agreement is {long.agreement:.3g} (95 % up to {agreement[1]:.3g}), below the limit {thresholds.agreement:.3g}")
    if kl is not None and kl[0] > thresholds.kl:
        found.append(f"its divergence is {long.kl:.3g} nats a position (95 % from {kl[0]:.3g}), above the limit {thresholds.kl:.3g}")
    elif long.kl is not None and figures.kl is not None and long.kl > thresholds.kl / 2:
        times = long.kl / max(figures.kl, 1e-9)
        if times > (ABOVE if long.kl > thresholds.kl else FARTHER):
            found.append(f"its divergence is {long.kl:.3g} nats a position, {times:.2g} times that on the prompts")
    if not (long.error_max is not None and long.error_max <= thresholds.error):
        value = "infinite" if long.error_max is None else f"{long.error_max:.3g}"
        found.append(f"its largest error is {value} standard deviations, above the limit {thresholds.error:.3g}")
    return found
