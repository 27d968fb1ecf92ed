"""Files, parts and `--set`: which value counts, and what is said to be its origin."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.config import layers
from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.config.sources import given_on_command_line
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def bare_command_line() -> Iterator[None]:
    yield
    given_on_command_line.clear()


def part(file: Path, name: str, text: str) -> Path:
    """A part beside a configuration."""
    folder = file.parent / "conf.d"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def ckptd(*arguments: str | Path) -> str:
    """What the verb prints."""
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_parts_are_read_over_the_file_in_the_order_of_their_names(write: Write) -> None:  # R5.6
    file = write("[limits]\njobs = 2\nattempts = 7\n[base]\nmap = { a = '/a', b = '/b' }\n")
    part(file, "20.toml", "[limits]\njobs = 4\n")
    part(file, "10.toml", "[limits]\njobs = 3\nthreads = 1\n[base.map]\nb = '/c'\n")
    part(file, ".hidden.toml", "[limits]\njobs = 60\n")
    part(file, "90.toml~", "no TOML")
    found = load(file)
    assert (found.limits.jobs, found.limits.threads, found.limits.attempts) == (4, 1, 7)
    assert found.base.map == {"a": Path("/a"), "b": Path("/c")}


def test_what_is_wrong_in_a_part_is_said_with_its_path(write: Write) -> None:  # R5.4
    file = write("[limits]\njobs = 2\n")
    wrong = part(file, "10.toml", "[limits]\njobs = 'x'\nstges = 2\n")
    with pytest.raises(UsageError) as caught:
        load(file)
    assert f"{wrong} for limits.jobs: " in str(caught.value) and f"{wrong} for limits.stges: is not a known key" in str(caught.value)
    wrong.write_text("[limits\n")
    with pytest.raises(UsageError, match="it is not TOML") as caught:
        load(file)
    assert str(wrong) in str(caught.value)


@pytest.mark.timeout(20)
def test_a_part_that_can_not_be_read_is_a_mistake_and_holds_up_nothing(write: Write) -> None:  # R5.4
    file = write("")
    part(file, "10.toml", "").unlink()
    os.mkfifo(file.parent / "conf.d" / "10.toml")
    with pytest.raises(UsageError, match="it is not a regular file"):
        load(file)
    (file.parent / "conf.d" / "10.toml").unlink()
    (file.parent / "conf.d" / "10.toml").symlink_to("nowhere")
    with pytest.raises(UsageError, match="a link that leads nowhere: remove or correct it"):
        load(file)


def test_a_configuration_that_comes_through_a_pipe_is_shown_with_its_origin() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream:
        stream.write("[limits]\njobs = 3\n")
    try:
        shown = json.loads(ckptd("config", "show", "--changed", "--json", "-c", f"/dev/fd/{reading}"))["values"]
    finally:
        os.close(reading)
    assert shown == {"limits.jobs": {"value": 3, "origin": f"/dev/fd/{reading}"}}


def test_set_counts_above_all_and_its_mistakes_are_said_by_its_name(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_LIMITS__JOBS", "3")
    file = write("[limits]\njobs = 2\n")
    shown = json.loads(
        ckptd("--set", "limits.jobs=5", "--set", "export.variants=pytorch,onnx", "config", "show", "--changed", "--json", "-c", file)
    )["values"]
    assert shown["limits.jobs"] == {"value": 5, "origin": "--set (command line)"}
    assert shown["export.variants"]["value"] == ["pytorch", "onnx"]
    given_on_command_line.update({"limits.jobs": "x", "limit.stages": "2"})
    with pytest.raises(UsageError) as caught:
        load(file)
    said = str(caught.value)
    assert "--set (command line) for limits.jobs: " in said and "--set limit.stages (command line): names no setting; did you mean" in said
    assert "change those values" in said
    given_on_command_line.clear()
    done = CliRunner().invoke(app, ["--set", "limits.jobs", "status"])
    assert isinstance(done.exception, UsageError) and "is not KEY=VALUE" in str(done.exception)


def test_what_is_shown_is_the_configuration_without_its_secrets(write: Write, tmp_path: Path) -> None:
    file = write(
        '[watch]\nroots = ["runs"]\n[base]\nmap = { "org/x.y" = "/m" }\n[notify]\nurls = ["slack://S3CRET/x", "S3CRET"]\n'
        '[[merge.add]]\npath = "/a\\"b"\nweight = 0.5\n'
    )
    printed = ckptd("config", "show", "-c", file)
    assert "S3CRET" not in printed and 'urls = ["slack://***", "***"]' in printed
    assert f"# {file}" in printed
    assert ckptd("config", "show", "limits.jobs", "-c", file).splitlines()[-1].split("#")[1].strip() == "default"
    for wrong, said in ("limits.jbs", "did you mean 'limits.jobs'?"), ("zzz", "the names are base, "):
        with pytest.raises(UsageError) as caught:
            ckptd("config", "show", wrong, "-c", file)
        assert said in str(caught.value) and len(str(caught.value)) < 500
    assert tomllib.loads(ckptd("config", "show", "watch", "-c", file))["watch"]["roots"] == [str(file.parent / "runs")]
    assert load(write(printed.replace('"slack://…", "…"', '"slack://S3CRET/x", "S3CRET"'))) == load(file)


LAYERS = ("file", "10.toml", "20.toml", "environment", "--set")


@given(chosen=st.lists(st.sampled_from(LAYERS), unique=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_the_strongest_that_speaks_counts_and_is_named(write: Write, monkeypatch: pytest.MonkeyPatch, chosen: list[str]) -> None:
    with monkeypatch.context() as patch:
        given_on_command_line.clear()
        texts = {name: f"[retention]\nkeep_last = {10 + place}\n" for place, name in enumerate(LAYERS)}
        file = write(texts["file"] if "file" in chosen else "")
        for name in LAYERS[1:3]:
            part(file, name, texts[name] if name in chosen else "")
        if "environment" in chosen:
            patch.setenv("CKPTD_RETENTION__KEEP_LAST", "13")
        if "--set" in chosen:
            given_on_command_line["retention.keep_last"] = "14"
        found, origin = load(file).retention.keep_last, layers.origin_of("retention.keep_last", layers.read(file))
        strongest = max((LAYERS.index(name) for name in chosen), default=None)
        expected = 10 + strongest if strongest is not None else 5
        origins = [str(file), str(file.parent / "conf.d" / "10.toml"), str(file.parent / "conf.d" / "20.toml"),
                   "CKPTD_RETENTION__KEEP_LAST (environment)", "--set (command line)"]  # fmt: skip
        assert found == expected
        assert origin == (origins[strongest] if strongest is not None else "default")


@pytest.mark.parametrize(("text", "priority"), [("", "normal"), ('[limits]\npriority = "idle"\n', "idle")])
def test_an_export_that_a_person_waits_for_runs_at_normal_priority_unless_one_is_set(
    write: Write, monkeypatch: pytest.MonkeyPatch, text: str, priority: str
) -> None:
    asked: list[Settings] = []

    def export_now(settings: Settings, *_: Any, **__: Any) -> None:
        asked.append(settings)
        raise UsageError(FaultCode.BAD_OPTION, "export", "it is enough", "stop here")

    monkeypatch.setattr("daemon.cli.export.export_now", export_now)
    file = write(text)
    CliRunner().invoke(app, ["export", str(file.parent), "--config", str(file)])
    assert [one.limits.priority for one in asked] == [priority] and load(file).limits.priority == "idle"
