"""`ckptd check` against the models that the checkpoints need: are they there, and has this box memory and disk for them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon.checkpoints.inspection import Inspection, inspect
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.formats.stages import ModelSize
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.attempts import Measured
from daemon.journal.file.opening import reading
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.overview import measured_by_stage
from daemon.operating.diagnosis import capacity, readability
from daemon.operating.diagnosis.readability import ModelFound
from tests.service import QUICK
from tests.verbs import run_verb

BASE = "made/up"


def base_of(folder: Path, parameters: int) -> Path:
    """A model of so many parameters in bf16: a header, and a hole for the values."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    header = json.dumps({"w": {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}}).encode()
    with open(folder / "model.safetensors", "wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + 2 * parameters)
    return folder


def check(folder: Path, checkpoint: Path, *, bases: Path, variants: Sequence[str] = ("pytorch", "onnx"), more: str = "") -> dict[str, Any]:
    """The answer of `ckptd check --json` where one checkpoint needs the base made/up."""
    taken = folder / "runs" / "run" / checkpoint.name
    shutil.copytree(checkpoint, taken)
    adapter = json.loads((taken / "adapter_config.json").read_text())
    (taken / "adapter_config.json").write_text(json.dumps({**adapter, "base_model_name_or_path": BASE}))
    config = folder / "config.toml"
    config.write_text(
        f'[watch]\nroots = ["{folder}/runs"]\n[output]\ndirectory = "{folder}/exports"\n[state]\ndirectory = "{folder}/state"\n'
        f'[base]\nsearch = ["{bases}"]\n[export]\nvariants = {json.dumps(list(variants))}\n[validate]\n{QUICK}{more}'
    )
    done = run_verb(["check", "--json", "--config", str(config)], folder, os.environ, timeout=60)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_variants_for_which_no_memory_would_ever_do_are_named_with_what_fits(tmp_path: Path, pico_checkpoint: Path) -> None:
    base_of(tmp_path / "bases" / "made" / "up", 70 * 10**9)
    told = check(tmp_path, pico_checkpoint, bases=tmp_path / "bases", more="[limits]\ndisk_reserve = 0\n")
    (problem,) = [one for one in told["problems"] if one.startswith("export.variants")]
    assert problem.startswith("export.variants: pytorch, onnx can't be made and checked for made/up (70.0 billion parameters)")
    assert "limits.memory_fraction allows" in problem and "export on a larger machine" in problem
    (room,) = [one for one in told["warnings"] if one.startswith("output.directory")]
    assert "an export of made/up writes about" in room and "set output.directory to a larger disk" in room
    assert told["facts"]["an export"].startswith("of made/up: about ")


def test_a_base_that_is_nowhere_is_told_before_any_export_fails(tmp_path: Path, pico_checkpoint: Path) -> None:
    (tmp_path / "bases").mkdir()
    told = check(tmp_path, pico_checkpoint, bases=tmp_path / "bases")
    (problem,) = [one for one in told["problems"] if one.startswith("base:")]
    assert problem.startswith("base: 1 checkpoint needs the base model made/up: no folder with its config.json and weights exists")
    assert 'set base.map."made/up"' in problem


def test_a_base_that_earlier_exports_had_is_only_away(tmp_path: Path, pico_checkpoint: Path) -> None:
    (tmp_path / "bases").mkdir()
    journal = Journal(prepare(tmp_path / "state", tmp_path / "exports").journal)
    reference = CheckpointRef(
        root="/r", run="run", step=1, path="/r/run/checkpoint-1", layout="trainer-adapter", digest="d", method="LORA", base_name="made/up"
    )  # fmt: skip
    work = Settings().work
    journal.jobs.add(NewJob("earlier", reference, work, ["merge"], tmp_path / "pin", tmp_path / "out" / "run", "f"))
    assert journal.jobs.start("earlier", tmp_path / "bases" / "made" / "up")
    journal.close()
    told = check(tmp_path, pico_checkpoint, bases=tmp_path / "bases")
    assert not [one for one in told["problems"] if one.startswith("base:")]
    (warning,) = [one for one in told["warnings"] if one.startswith("base:")]
    assert "earlier exports had it, so exports wait 24 h for it (limits.away_hours)" in warning


def test_a_model_that_fits_is_said_with_what_an_export_takes(tmp_path: Path, pico_checkpoint: Path) -> None:
    base_of(tmp_path / "bases" / "made" / "up", 10**6)
    told = check(tmp_path, pico_checkpoint, bases=tmp_path / "bases")
    assert not [one for one in told["problems"] + told["warnings"] if "made/up" in one]
    assert "MiB of memory and" in told["facts"]["an export"] or "GiB of memory and" in told["facts"]["an export"]


def test_the_base_models_that_exports_will_find_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R5.4
    def told(**base: object) -> str:
        sections = {"watch": {"roots": [tmp_path / "runs"]}, "state": {"directory": tmp_path / "state"}, "base": base}
        return readability.tried(Settings.model_validate(sections)).bases

    assert told() == "" and told(search=[tmp_path / "bases"]) == "no model in base.search yet"
    for name in ("made/up", "plain", "other/one", "other/two", "z"):
        base_of(tmp_path / "bases" / name, 10)
    (tmp_path / "bases" / "plain" / "original").mkdir()
    assert told(search=[tmp_path / "bases"]) == "made/up, other/one, other/two, plain and 1 more"
    monkeypatch.setattr(readability, "_ENTRIES", 3)
    assert told(search=[tmp_path / "bases"]) == "made/up", "however many folders there are, few are looked at"
    assert told(map={"org/name": tmp_path / "bases" / "z", "gone": tmp_path / "gone"}) == "org/name"


def judged(
    models: Sequence[ModelFound], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: dict[str, list[Measured]]
) -> capacity.Capacity:
    monkeypatch.setattr(capacity, "memory", lambda: (10 << 30, 9 << 30))
    monkeypatch.setattr(capacity, "free_disk", lambda folder: 1 << 40)
    monkeypatch.setattr(capacity, "_ask_journal", lambda settings, look: measured)
    settings = {"state": {"directory": tmp_path}, "output": {"directory": tmp_path / "out"}, "export": {"variants": ["pytorch", "onnx"]}}
    return capacity.capacity_of(Settings.model_validate(settings), models)


def test_what_was_measured_for_that_size_counts_more_than_the_formula(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = ModelSize(10**9, 5 * 10**8)
    model = ModelFound("one", 3, "", size.stored_bytes, size.parameters)
    assert judged([model], monkeypatch, tmp_path, {}).problems == []
    found = judged([model], monkeypatch, tmp_path, {"onnx": [Measured(size, 9 << 30, 0, 1.0)]})
    (problem,) = found.problems
    assert "onnx can't be made and checked for one (0.5 billion parameters): it needs up to about 10.3 GiB" in problem
    assert "leave it out (pytorch would fit)" in problem


def test_a_model_that_can_be_checked_layer_by_layer_is_too_large_only_for_what_needs_all_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = ModelFound("large", 1, "", 12 * 10**9, 6 * 10**9, layers=2 << 30)
    (problem,) = judged([model], monkeypatch, tmp_path, {}).problems
    assert "onnx can't be made and checked" in problem and "leave it out (pytorch would fit)" in problem
    for layers in ("it is a mixture of experts", 20 << 30):
        (problem,) = judged([dataclasses.replace(model, layers=layers)], monkeypatch, tmp_path, {}).problems
        assert "pytorch, onnx can't be made and checked" in problem


def test_what_only_some_models_need_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small, large = ModelFound("small", 1, "", 2 * 10**6, 10**6), ModelFound("large", 1, "", 140 * 10**9, 70 * 10**9)
    found = judged([small, large, ModelFound("gone", 2, "it is nowhere; put it there")], monkeypatch, tmp_path, {})
    assert found.problems == []
    assert [one.split(":")[0] for one in found.warnings] == ["base", "export.variants"]
    assert "2 checkpoints need the base model gone: it is nowhere; put it there" in found.warnings[0]


def test_however_many_checkpoints_there_are_all_are_read_and_few_are_inspected(
    tmp_path: Path, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_of(tmp_path / "bases" / "made" / "up", 10**6)
    for run in range(3):
        for number in range(5):
            shutil.copytree(pico_checkpoint, tmp_path / "runs" / f"run{run}" / f"checkpoint-{4 if number == 0 else 10 * number}")
    inspected: list[Path] = []

    def counting(path: Path) -> Inspection:
        inspected.append(path)
        return inspect(path)

    monkeypatch.setattr(readability, "inspect", counting)
    monkeypatch.setattr(readability, "_LOOKS", 7)
    sections = {
        "watch": {"roots": [tmp_path / "runs"]},
        "state": {"directory": tmp_path / "state"},
        "base": {"search": [tmp_path / "bases"]},
    }
    found = readability.tried(Settings.model_validate(sections))
    assert "15 checkpoints" in found.summary
    assert 0 < len(inspected) <= 7
    complete = [path.parent for path in inspected if inspect(path).complete]
    assert len(complete) == len(set(complete)), "one that is complete says it for its run"


def test_the_journal_is_asked_what_stages_took(journal: Journal) -> None:
    journal.database.write("measure", lambda c: c.execute("INSERT INTO measured VALUES (1, 'onnx', 10, 20, 30, 40, 1.5, 'now')"))
    with reading(journal.database.path) as connection:
        assert measured_by_stage(connection) == {"onnx": [Measured(ModelSize(20, 10), 30, 40, 1.5)]}
