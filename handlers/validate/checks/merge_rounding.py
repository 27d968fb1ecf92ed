"""What rounding the merged weights to 16 bits costs, beside what the adapter does. Pure.

Called by the stage `merged`. The merged model runs in fp32, where weights of 16 bits are exact, as the live model does: what their outputs
differ by is the rounding of base + delta, which is done once, in the merge. The merge's own figure `held_share` is of weights, where
rounding evens out; this one is of outputs, where it does not.
"""

from __future__ import annotations

from daemon.contract.jobs.figures import Likeness

NARROW = ("bfloat16", "float16")
LARGE = 0.05
"""Share of the adapter's effect from which its rounding is worth a sentence."""


def lost_share(merged: Likeness, base: Likeness | None, dtype: str) -> float | None:
    """Mean |Δ| of the merged model from the live one over that of the base from it; None where nothing was rounded or nothing changed.

    `merged` and `base` are of the same prompts; `dtype`: of the merged weights, as torch names it."""
    lost, whole = merged.error_mean_absolute, base.error_mean_absolute if base else None
    return lost / whole if dtype in NARROW and lost is not None and whole else None


def sentence(share: float | None, dtype: str) -> str | None:
    """Say what is lost, where it is much, and what keeps it."""
    if share is None or share < LARGE:
        return None
    return (
        f"rounding the merged weights to {dtype} changes its outputs by {share:.0%} of what the adapter changes in them;"
        ' merge.dtype = "float32" keeps the adapter whole, in files of twice the size'
    )
