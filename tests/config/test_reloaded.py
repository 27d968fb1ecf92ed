"""What a reload changed, key by key, without what may be a secret."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.config.places.paths import StatePaths
from daemon.config.settings import Settings
from daemon.operating.monitoring.live import read_live
from daemon.operating.reload import changes
from daemon.system.lock import is_locked
from tests.service import Service, making

BEFORE = '[limits]\njobs = 1\n[notify]\nurls = ["json://user:S3CRETword@host.example/x"]\n'
AFTER = (
    '[limits]\njobs = 2\n[notify]\nurls = ["json://user:0THERsecret@host.example/y"]\non = ["failed"]\n'
    '[base]\nmap = { "org/name" = "/models" }\n'
    '[export]\nvariants = ["onnx"]\n[output]\nmode = "0640"\n[validate]\nstrictness = "loose"\n[validate.limits.onnx]\nkl = 0.3\n'
)


def of(folder: Path, text: str) -> Settings:
    file = folder / "config.toml"
    file.write_text(text)
    return load(file)


def test_each_key_is_named_with_its_value_before_and_after(tmp_path: Path) -> None:
    assert changes(of(tmp_path, BEFORE), of(tmp_path, AFTER)) == (
        'output.mode: "" → "0640"',
        'export.variants: ["pytorch", "onnx", "onnx-int8"] → ["onnx"]',
        'validate.strictness: "normal" → "loose"',
        "limits.jobs: 1 → 2",
        'notify.on: ["succeeded", "partial", "failed", "rejected", "delivery_failed", "stuck", "disk_low", "daemon_unwel… → ["failed"]',
        'base.map.org/name: (not set) → "/models"',
        "validate.limits.onnx.kl: (not set) → 0.3",
        "notify.urls: changed",
    )


def test_the_same_values_are_no_change(tmp_path: Path) -> None:
    assert changes(of(tmp_path, AFTER), of(tmp_path, f"# other words\n{AFTER}")) == ()


def test_limits_by_their_name_of_1_0_0_are_named_one_by_one(tmp_path: Path) -> None:
    older = "[validate.thresholds.onnx]\nkl = 0.7\n"
    assert changes(of(tmp_path, ""), of(tmp_path, older)) == ("validate.thresholds.onnx.kl: 0.001 → 0.7",)


def test_urls_in_a_file_are_only_said_to_differ(tmp_path: Path) -> None:
    urls = tmp_path / "urls"
    urls.write_text("json://host.example/S3CRETword\n")
    before = of(tmp_path, f'[notify]\nurls_file = "{urls}"\n')
    urls.write_text("json://host.example/0THERsecret\n")
    assert changes(before, load(tmp_path / "config.toml")) == ("notify.urls_file: what it holds changed",)


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    yield from making(Service, tmp_path)


def test_the_daemon_and_the_command_say_what_changed_and_no_secret(make_service: Callable[..., Service]) -> None:
    service = make_service(extra=BEFORE)
    service.start()
    service.wait_for(lambda status: status["daemon"]["running"], 20)
    text = service.config.read_text().replace("jobs = 1", "jobs = 3").replace("S3CRETword", "0THERsecret")
    service.config.write_text(text)
    assert service.run_verb("reload") == 0, service.said
    assert "  limits.jobs: 1 → 3\n  notify.urls: changed" in service.said
    assert service.run_verb("reload") == 0 and "nothing has changed in it" in service.said
    assert service.stop() == 0
    log = (service.state / "ckptd.log").read_text()
    said = [line["message"] for line in map(json.loads, log.splitlines()) if line["event"] == "config.reloaded"]
    assert said == [
        "the configuration was taken over: limits.jobs: 1 → 3; notify.urls: changed",
        "the configuration was taken over; nothing has changed in it",
    ]
    assert "S3CRETword" not in log + service.said and "0THERsecret" not in log + service.said


def test_a_file_that_is_refused_is_refused_by_the_daemon_too_whoever_finds_the_mistake(make_service: Callable[..., Service]) -> None:
    service = make_service(extra=BEFORE)
    service.start()
    service.wait_for(lambda status: status["daemon"]["running"], 20)
    right = service.config.read_text()
    for wrong in (right.replace("jobs = 1", 'jobs = "many"'), right + "[[["):
        service.config.write_text(wrong)
        assert service.run_verb("reload") == 2 and "the configuration" in service.said, service.said
        assert read_live(StatePaths(service.state).live).configuration.problem  # type: ignore[union-attr]  # what the metric is made of
        service.config.write_text(right)
        assert service.run_verb("reload") == 0
        assert not read_live(StatePaths(service.state).live).configuration.problem  # type: ignore[union-attr]
    assert service.stop() == 0


def test_a_daemon_may_be_asked_as_soon_as_it_has_the_state_directory(make_service: Callable[..., Service]) -> None:
    service = make_service()
    service.start()
    while not is_locked(StatePaths(service.state).lock):
        time.sleep(0.001)
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    service.wait_for(lambda _: "the configuration was taken over" in service.log(), 60)
    assert service.stop() == 0
