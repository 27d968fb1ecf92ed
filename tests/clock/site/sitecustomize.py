"""Imported by Python before anything else where `tests.clock.shift` says so: shifts the wall clock, never the monotonic one."""

import datetime
import mmap
import os
import struct
import time

_real_time, _real_time_ns = time.time, time.time_ns
_real_localtime, _real_gmtime, _real_strftime, _real_ctime = time.localtime, time.gmtime, time.strftime, time.ctime
_RealDateTime, _RealDate = datetime.datetime, datetime.date


def _install(file: str) -> None:
    with open(file, "rb") as stream:
        memory = mmap.mmap(stream.fileno(), 8, access=mmap.ACCESS_READ)

    def offset() -> float:
        return float(struct.unpack("=d", memory[:8])[0])

    def now() -> float:
        return _real_time() + offset()

    class _Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, _RealDateTime)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, _RealDateTime)

    class ShiftedDateTime(_RealDateTime, metaclass=_Kind):
        """Gives real datetimes, of the shifted moment; arithmetic and parsing are the original's."""

        def __new__(cls, *arguments, **options):
            return _RealDateTime(*arguments, **options)

        @classmethod
        def now(cls, tz=None):
            return _RealDateTime.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls):
            return _RealDateTime.fromtimestamp(now(), datetime.timezone.utc).replace(tzinfo=None)  # noqa: UP017

        @classmethod
        def today(cls):
            return _RealDateTime.fromtimestamp(now())

    for name in ("fromtimestamp", "fromisoformat", "strptime", "combine", "utcfromtimestamp", "fromordinal"):
        setattr(ShiftedDateTime, name, getattr(_RealDateTime, name))
    ShiftedDateTime.__name__ = ShiftedDateTime.__qualname__ = "datetime"
    time.time = now
    time.time_ns = lambda: _real_time_ns() + int(offset() * 1e9)
    time.localtime = lambda seconds=None: _real_localtime(now() if seconds is None else seconds)
    time.gmtime = lambda seconds=None: _real_gmtime(now() if seconds is None else seconds)
    time.strftime = lambda form, moment=None: _real_strftime(form, time.localtime() if moment is None else moment)
    time.ctime = lambda seconds=None: _real_ctime(now() if seconds is None else seconds)
    datetime.datetime = ShiftedDateTime


if os.environ.get("CLOCK_SHIFT"):
    _install(os.environ["CLOCK_SHIFT"])
