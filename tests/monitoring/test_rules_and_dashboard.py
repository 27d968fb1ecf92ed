"""The alert rules and the dashboard: they ask for what a daemon exposes, in Prometheus's language, and say what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemon.operating.monitoring.metrics.table import METRICS
from tests.monitoring.promql import asked, unknown
from tests.monitoring.reading import Samples, read
from tests.runner.conftest import ROOT, Toy, copied
from tests.service import making
from tests.words.written import commands, is_key, keys, spans, wrong_with

FOLDER = ROOT / "docs/monitoring"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PROMTOOL = shutil.which("promtool")


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression stands, and the expression, with Grafana's variables filled in."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    queries = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    queries += [(row["name"], row["expr"]) for row in DASHBOARD["annotations"]["list"]]
    for title, query in queries:
        yield title, query.replace("$__rate_interval", "5m")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, pico_checkpoint: Path) -> Iterator[list[Samples]]:
    """What a daemon exposed while an export ran and another waited, and when both had ended."""
    for make in making(Toy, tmp_path_factory.mktemp("lived")):
        yield _live(make, pico_checkpoint)


def _live(make: Callable[..., Toy], checkpoint: Path) -> list[Samples]:
    toy = make(extra="")
    file = toy.folder / "ckptd.prom"
    with toy.config.open("a") as config:
        config.write(f'[metrics]\ntextfile = "{file}"\n[limits]\njobs = 2\nstages = 1\n')
    toy.start_held(lambda toy: [copied(checkpoint, toy, run=run) for run in ("a", "b")])
    seen: list[Samples] = []

    def waits() -> bool:
        seen[:] = [read(file.read_bytes())] if file.is_file() else []
        return bool(seen) and any(name == "ckptd_jobs_waiting" for name, _ in seen[0])

    toy.wait_for(lambda _: waits(), 60)
    toy.held.unlink()
    toy.wait_ended(2)
    toy.wait_for(lambda _: read(file.read_bytes())["ckptd_exports_total", (("state", "succeeded"),)] == 2, 60)
    assert toy.stop() == 0
    return [*seen, read(file.read_bytes())]


@pytest.mark.slow
def test_every_name_and_label_that_rules_and_dashboard_ask_for_is_exposed_by_a_daemon(lived: list[Samples]) -> None:
    exposed: dict[str, dict[str, set[str]]] = {}
    for name, labels in (key for samples in lived for key in samples):
        of = exposed.setdefault(name, {})
        for label, value in labels:
            of.setdefault(label, set()).add(value)
    assert {place: wrong for place, query in expressions() if (wrong := list(unknown(query, exposed)))} == {}
    assert list(unknown('rate(ckptd_exports_total{state="fail"}[5m])', exposed)) == ['ckptd_exports_total{state="fail"}']
    assert list(unknown("sum by (stages) (ckptd_job)", exposed)) == ["ckptd_job", "stages"]


@pytest.mark.parametrize("query", ["sum(ckptd_jobs", "rate(ckptd_exports_total)", "quantile_of(0.5, ckptd_jobs)"])
def test_what_is_no_promql_is_noticed(query: str) -> None:
    with pytest.raises(ValueError):
        asked(query)


def test_every_expression_asks_for_metrics_of_the_table_that_stay() -> None:
    names = {metric.name for metric in METRICS if "Deprecated" not in metric.help} | {"up"}
    names |= {f"{metric.name}_{part}" for metric in METRICS if metric.kind == "histogram" for part in ("bucket", "sum", "count")}
    assert {(place, name) for place, query in expressions() for name in asked(query).series if name not in names} == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_is_wrong_where_and_which_command_helps(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Ckptd([A-Z][a-z]+)+", rule["alert"]) and rule["labels"]["severity"] in ("critical", "warning")
    summary, remedy = rule["annotations"]["summary"], rule["annotations"]["remedy"]
    assert summary.endswith(".") and remedy.endswith(".")
    assert "$labels.instance" in summary or "absent(" in rule["expr"]
    assert commands(remedy) and not [why for command in commands(remedy) if (why := wrong_with(command))]
    assert [key for span in spans(remedy) for key in keys(span) if not is_key(key)] == []
    labels = set(re.findall(r"\$labels\.(\w+)", summary))
    assert labels <= {"instance"} | {label for metric in METRICS if metric.name in asked(rule["expr"]).series for label in metric.labels}


def test_every_panel_says_where_its_data_come_from_and_covers_no_other() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= variables | {"__rate_interval", "__all"}
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not mine & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    sources = re.findall(r'"datasource": {"type": "prometheus", "uid": "([^"]*)"}', json.dumps(DASHBOARD, sort_keys=True))
    assert set(sources) == {"${datasource}"} and json.dumps(DASHBOARD).count('"datasource": {') == len(sources)
    for panel in PANELS:
        assert panel["datasource"] and all('{instance=~"$instance"' in target["expr"] for target in panel["targets"]), panel["title"]


def test_the_rows_of_the_dashboard_are_what_people_ask_in_their_order() -> None:
    assert [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"] == [
        "Now",
        "Throughput",
        "Durations",
        "Quality",
        "Box",
    ]


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_itself_accepts_the_rules_and_fires_them_when_it_should() -> None:
    for words in (["check", "rules", str(FOLDER / "alerts.yml")], ["test", "rules", str(Path(__file__).with_name("alerts_tried.yml"))]):
        done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_itself_finds_no_fault_with_the_figures_of_a_daemon(lived: list[Samples], tmp_path: Path) -> None:
    text = next(tmp_path.parent.glob("lived*/service-0/ckptd.prom")).read_bytes()
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
