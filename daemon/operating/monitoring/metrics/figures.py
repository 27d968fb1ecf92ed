"""The values of the metrics, kept by Prometheus's library.

The library is imported by this package alone, and where metrics are wanted alone: it takes memory. Its global registry stays unused, since
what its own collectors say of the process is in the table (`ckptd_resident_bytes`, `ckptd_start_time_seconds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric as Family

from daemon.operating.monitoring.metrics.table import METRICS, Kind

# A second family for each counter and histogram would say what `ckptd_start_time_seconds` says.
disable_created_metrics()  # type: ignore[no-untyped-call]

M = TypeVar("M", Gauge, Counter, Histogram)


class Figures:
    """Values of the metrics of some kinds, which may be asked and changed from any thread.

    A metric or labels that the table does not have raise KeyError or ValueError.
    """

    def __init__(self, *kinds: Kind) -> None:
        wanted = [metric for metric in METRICS if metric.kind in kinds]
        self._gauges = {m.name: Gauge(m.name, m.help, m.labels, registry=None) for m in wanted if m.kind == "gauge"}
        self._counters = {m.name: Counter(m.name, m.help, m.labels, registry=None) for m in wanted if m.kind == "counter"}
        self._histograms = {
            m.name: Histogram(m.name, m.help, m.labels, registry=None, buckets=m.buckets) for m in wanted if m.kind == "histogram"
        }

    def begin(self, name: str, **labels: str) -> None:
        """Let a counter or a histogram be there before its first event: a rate sees an increase only from a 0 that was scraped."""
        if name in self._counters:
            _with(self._counters[name], labels)
        else:
            _with(self._histograms[name], labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Give a gauge its value."""
        _with(self._gauges[name], labels).set(value)

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        _with(self._counters[name], labels).inc(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into its bucket of a histogram."""
        _with(self._histograms[name], labels).observe(value)

    def families(self) -> dict[str, Family]:
        """Name → all values of this moment, as the library's writers take them."""
        metrics = (*self._gauges.items(), *self._counters.items(), *self._histograms.items())
        return {name: family for name, metric in metrics for family in metric.collect()}


def _with(metric: M, labels: Mapping[str, str]) -> M:
    return metric.labels(**{label: _legible(value) for label, value in labels.items()}) if labels else metric


def _legible(text: str) -> str:
    """Return a label's value as UTF-8 can hold it: what is no Unicode, as bytes in the name of a folder may be, is shown as its code."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
