"""The Containerfile names what exists, runs without root, and its health check tells a daemon that runs from one that does not."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_bad_input import ckptd
from tests.cli.test_every_verb import VERBS
from tests.service import Service

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text()).splitlines()


def of(instruction: str) -> list[str]:
    return [line.partition(" ")[2].strip() for line in LINES if line.startswith(f"{instruction} ")]


def health_check() -> str:
    """The health check, as a shell runs it."""
    shell, option, command = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    assert (shell, option) == ("sh", "-c")
    return str(command)


def test_everything_that_is_copied_is_there() -> None:
    copied = [word for line in of("COPY") if not line.startswith("--") for word in shlex.split(line)[:-1]]
    assert {"daemon", "handlers", "ckptd.py", "config.toml", "docs/ckptd.1"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_it_runs_as_a_user_of_its_own_with_verbs_and_options_that_exist() -> None:
    assert of("USER") == ["ckptd"] and LINES.index("USER ckptd") > max(n for n, line in enumerate(LINES) if line.startswith("RUN "))
    for words in (shlex.split(health_check().partition("||")[0])[1:], json.loads(of("CMD")[0])):
        options = {name for one in VERBS[words[0],].params for name in one.opts}
        assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(("code", "healthy"), [(0, True), (1, False), (2, False), (75, True)])
def test_a_full_disk_does_not_make_a_container_unhealthy(tmp_path: Path, code: int, healthy: bool) -> None:
    (tmp_path / "ckptd").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "ckptd").chmod(0o755)
    answer = subprocess.run(["sh", "-c", health_check()], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert (answer.returncode == 0) == healthy


@pytest.mark.slow
def test_the_health_check_tells_whether_the_daemon_is_well(make_service: Callable[..., Service], tmp_path: Path) -> None:
    service = make_service()
    assert ckptd(tmp_path, "status", "--exit-code", "--config", service.config).returncode == 1
    assert ckptd(tmp_path, "status", "--config", service.config).returncode == 0
    service.start()
    service.wait_for(lambda value: value["daemon"]["verdict"] == "healthy", 60)
    assert ckptd(tmp_path, "status", "--exit-code", "--config", service.config).returncode == 0
    assert service.stop() == 0
    assert ckptd(tmp_path, "status", "--exit-code", "--json", "--config", service.config).returncode == 1
