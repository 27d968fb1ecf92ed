"""Reads what the daemon exposes as Prometheus's own parsers do, and compares each family with the table."""

from __future__ import annotations

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from daemon.journal.journal import Journal
from daemon.operating.monitoring.metrics.exposition import Exposition
from daemon.operating.monitoring.metrics.figures import Figures
from daemon.operating.monitoring.metrics.table import METRICS
from tests.journal.entries import STAGES

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""What Prometheus sends as Accept."""


def read(text: bytes | str, kind: str = "text/plain") -> Samples:
    """The samples of an exposition as Prometheus's own parser reads it, each in its family of the table."""
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    assert text.endswith("\n")
    parse = openmetrics_parser if kind.startswith("application/openmetrics-text") else parser
    families = list(parse.text_string_to_metric_families(text))
    heads = [line.split(" ")[2] for line in text.split("\n") if line.startswith("# HELP ")]
    assert len(heads) == len(set(heads)) == len(families), "one help for each family, all samples below it"
    of_table = [(metric.name.removesuffix("_total"), metric.kind, metric.help) for metric in METRICS]
    said = [(family.name.removesuffix("_total"), family.type, family.documentation) for family in families]
    assert [family for family in of_table if family in said] == said, "in the order of the table"
    samples = [sample for family in families for sample in family.samples]
    read_back = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(read_back) == len(samples)
    return read_back


def expose(journal: Journal) -> Exposition:
    """The exposition of a daemon whose exports have two variants and the journal's tests' stages."""
    return Exposition(journal, STAGES, ("pytorch", "onnx"))


def exposed(exposition: Exposition, gauges: Figures | None = None) -> Samples:
    """What is exposed now: the same to whoever asks in whichever format."""
    exposition.take(gauges or Figures("gauge"))  # which also writes what was asked for last, OpenMetrics
    plain, *others = (read(*exposition.answer(accept)) for accept in (OPENMETRICS, None, OPENMETRICS))
    assert others == [plain, plain]
    return plain
