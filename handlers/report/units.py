"""Formats figures for readers. Pure; called by the templates' filters and by `handlers.report.pages.charts`.

Every function takes None, or a value of another type than it expects, and gives "–" for it: figures may be missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeGuard

from daemon.contract.language import lists
from daemon.contract.language.catalog import translated

NOTHING = "–"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` can be drawn or counted with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN is none


def size(value: Any) -> str:
    """Bytes in binary units, as every verb prints them, three digits: "1.20 MiB"."""
    if not is_number(value):
        return NOTHING
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1023.5:
            break
        amount, unit = amount / 1024, larger
    digits = f"{amount:.0f}" if abs(amount) >= 999.5 else f"{amount:#.3g}".rstrip(".")
    return f"{int(amount)} B" if unit == "B" else f"{digits} {unit}"


def duration(value: Any) -> str:
    """Seconds as "12 ms", "3.4 s", "2 min 5 s" or "1 h 3 min"."""
    if not is_number(value):
        return NOTHING
    if value < 0.9995:
        return f"{value * 1000:.3g} ms" if value else translated("{seconds} s").format(seconds=0)
    if value < 99.5:
        return translated("{seconds} s").format(seconds=f"{value:.3g}")
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return translated("{minutes} min {seconds} s").format(minutes=minutes, seconds=seconds)
    return translated("{hours} h {minutes} min").format(hours=minutes // 60, minutes=minutes % 60)


def number(value: Any) -> str:
    """Three significant digits, thousands separated: "1.2e-5", "0.0312", "596,000,000"."""
    if not is_number(value):
        return NOTHING
    if isinstance(value, float) and math.isinf(value):
        return translated("infinite")
    if isinstance(value, int) or (abs(value) >= 1000 and float(value).is_integer()):
        return f"{int(value):,}"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(value: Any) -> str:
    """A share between 0 and 1 as "98.7 %"; only 1 itself is ever shown as "100 %"."""
    if not is_number(value):
        return NOTHING
    text = f"{value * 100:.1f}".removesuffix(".0")
    return lists.percent("99.9" if text == "100" and value < 1 else text)


def times(value: Any) -> str:
    """A ratio as "2.8 ×"."""
    return lists.times(f"{value:.2g}" if value < 10 else f"{value:.0f}") if is_number(value) else NOTHING


def moment(value: Any) -> str:
    """An ISO 8601 time as "2026-11-20 10:24:12 UTC"; any other text as it is."""
    if not isinstance(value, str):
        return NOTHING
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{(read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(ends: tuple[float, float], show: Callable[[float], str] = number) -> str:
    """An interval as "0.98 to 1.04"."""
    return translated("{low} to {high}").format(low=show(ends[0]), high=show(ends[1]))


def shown(value: Any) -> str:
    """Any JSON value as one short text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return translated("yes") if value else translated("no")
    if is_number(value):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILTERS = {"bytes": size, "duration": duration, "number": number, "percent": percent, "times": times, "moment": moment, "shown": shown}
"""What templates call these."""
