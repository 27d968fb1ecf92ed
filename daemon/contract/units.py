"""Formats figures for people: the one place that decides how many digits a size, a share, a time or a ratio has. Pure.

Called by the output of every command, by the report, by the README of an export and by advice; JSON answers keep the figures as they are.
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
    """Bytes in binary units, three digits: "1.20 MiB"."""
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
    """Seconds as "12 µs", "12 ms", "3.4 s", "2 min 5 s", "1 h 3 min" or "2 d 5 h"; a part that is 0 is left out."""
    if not is_number(value):
        return NOTHING
    if 0 < value < 9.995e-4:
        return translated("{microseconds} µs").format(microseconds=f"{value * 1e6:.3g}")
    if value < 0.9995:
        said = translated("{milliseconds} ms").format(milliseconds=f"{value * 1000:.3g}")
        return said if value else translated("{seconds} s").format(seconds=0)
    if value < 99.5:
        return translated("{seconds} s").format(seconds=f"{value:.3g}")
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        both, minutes_alone = translated("{minutes} min {seconds} s"), translated("{minutes} min")
        return (both if seconds else minutes_alone).format(minutes=minutes, seconds=seconds)
    hours, minutes = divmod(round(value / 60), 60)
    if hours < 48:
        both, hours_alone = translated("{hours} h {minutes} min"), translated("{hours} h")
        return (both if minutes else hours_alone).format(hours=hours, minutes=minutes)
    days, hours = divmod(round(value / 3600), 24)
    both, days_alone = translated("{days} d {hours} h"), translated("{days} d")
    return (both if hours else days_alone).format(days=days, hours=hours)


def running(value: Any) -> str:
    """Seconds that still grow while they are read, without tenths: "3 s", "2 min 5 s"."""
    return duration(math.floor(value)) if is_number(value) else NOTHING


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


def sigma(value: Any) -> str:
    """An error in standard deviations of the live model's outputs: "0.0131 σ"."""
    return f"{number(value)} σ" if is_number(value) else NOTHING


def nats(value: Any) -> str:
    """A divergence: "0.0042 nats"."""
    return f"{number(value)} nats" if is_number(value) else NOTHING


def signed(value: Any, show: Callable[[float], str] = number) -> str:
    """A difference, with its sign: "+1.3 %"."""
    return f"{'+' if is_number(value) and value > 0 else ''}{show(value)}"


def compared(value: Any) -> str:
    """How many times one figure is another that was measured alike, which may be nearly the same: "1.03 ×"."""
    return lists.times(number(value)) if is_number(value) else NOTHING


def ratio(value: Any) -> str:
    """Two digits, since no speed is measured to more: "2.8", "5.0", "12"."""
    return NOTHING if not is_number(value) else f"{value:.0f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def times(value: Any) -> str:
    """A ratio as "2.8 ×"."""
    return lists.times(ratio(value)) if is_number(value) else NOTHING


def moment(value: Any) -> str:
    """An ISO 8601 time as "2026-11-20 10:24:12 UTC"; any other text as it is."""
    if not isinstance(value, str):
        return NOTHING
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return value
    return f"{(read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def seconds_of(moment: str | None) -> float | None:
    """An ISO 8601 time as seconds since the epoch; None for what is none."""
    try:
        read = datetime.fromisoformat(moment) if moment else None
    except ValueError:
        return None
    return None if read is None else (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


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
