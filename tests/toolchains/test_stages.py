"""A stage that names a toolchain runs in it, by the same job file, lines and result; one whose toolchain is missing says so at once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.config.settings import Settings, ToolchainSettings
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs.messages import Outcome, StageContext
from daemon.contract.jobs.plan import spec_of
from daemon.journal.rows import JobRow
from daemon.operating.diagnosis.doctor import examine, formats_here
from daemon.running.attempts.executor import Order
from daemon.running.rules.resume_keys import stage_key
from daemon.running.workers.worker import Worker
from daemon.toolchains import registry
from daemon.toolchains.registry import HANDLERS, MANIFEST, command_of
from handlers.toolchains import use
from tests.toolchains.conftest import Fake, copied
from tests.workers.helpers import BOUNDS, make_context, wait


@pytest.fixture
def in_fake(context: StageContext) -> StageContext:
    """The same attempt, which needs no more than the contract does, in the toolchain `fake`."""
    return context.model_copy(update={"toolchain": "fake"})


@pytest.fixture
def context(tmp_path: Path, pico_base: Path, fake: Fake) -> StageContext:
    """An attempt of the stage `pytorch` to which the fake toolchain is offered."""
    found = make_context(tmp_path, "pytorch").model_copy(
        update={"inputs": {"merge": str(pico_base)}, "pin": str(pico_base), "base": str(pico_base), "limits": make_context(tmp_path).limits}
    )
    fake.chains.offer(Path(found.cache))
    return found


def attempt(context: StageContext) -> Worker:
    folder = Path(context.result).parent
    folder.mkdir(parents=True)
    return Worker(Order(context, folder, BOUNDS))


def test_a_stage_runs_in_its_toolchain_by_the_same_contract(in_fake: StageContext, fake: Fake) -> None:  # R7.1
    worker = attempt(in_fake)
    assert [str(part) for part in worker.process.args][-5:-1] == list(registry.command_in(fake.installed.folder, "handlers"))[1:]  # type: ignore[union-attr]
    result = wait(worker)
    assert result.outcome is Outcome.SUCCEEDED, result.fault
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {entry.path for entry in result.files}
    assert worker.progress.fraction == 1.0
    assert "torch" not in result.versions and result.versions["python"] == fake.installed.manifest.python


def test_what_the_main_environment_has_is_not_there(in_fake: StageContext) -> None:
    result = wait(attempt(in_fake.model_copy(update={"stage": "onnx", "entry": spec_of("onnx").entry})))
    assert result.fault is not None
    assert result.fault.cause.startswith("ModuleNotFoundError: No module named"), result.fault


def test_a_stage_without_a_toolchain_is_run_as_ever(context: StageContext) -> None:
    assert command_of(context) == HANDLERS


def test_what_is_damaged_is_offered_no_more_and_what_was_away_is_used_again(
    in_fake: StageContext, context: StageContext, fake: Fake, tmp_path: Path
) -> None:
    assert use.find(context, "fake") == fake.installed.folder
    chains, cache = copied(fake, tmp_path / "state"), Path(context.cache)
    chains.offer(cache)
    assert use.find(context, "fake") == chains.folder("fake")
    chains.folder("fake").rename(tmp_path / "aside")
    assert use.find(context, "fake") is None
    with pytest.raises(OSError):
        attempt(in_fake)
    chains.offer(cache)
    assert use.find(context, "fake") is None and chains.gone("fake", cache) is not None
    (tmp_path / "aside").rename(chains.folder("fake"))
    assert use.find(context, "fake") == chains.folder("fake") and chains.gone("fake", cache) is None
    (chains.folder("fake") / MANIFEST).unlink()
    chains.offer(cache)
    assert list((cache / "toolchains").iterdir()) == [], "damaged, not away"
    assert use.find(context, "fake") is None


def test_a_module_run_inside_answers_or_says_what_went_wrong(context: StageContext, fake: Fake, tmp_path: Path) -> None:
    folder = use.find(context, "fake")
    assert folder is not None
    assert use.run_module(folder, "fakelib.probe", {}, tmp_path, dict[str, int]) == {"number": 7}
    with pytest.raises(use.ToolchainFailedError, match=r"fakelib.probe gave another answer than was expected: .*list"):
        use.run_module(folder, "fakelib.probe", {}, tmp_path, list[int])
    with pytest.raises(use.ToolchainFailedError, match=r"no_such_module ended with exit code 1 and no answer: .*No module named"):
        use.run_module(folder, "no_such_module", {}, tmp_path, dict[str, int])

    def told() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use.run_module(folder, "fakelib.probe", {}, tmp_path, dict[str, int], safe_point=told)


def test_formats_and_check_name_what_brings_a_missing_toolchain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: Fake, request: pytest.FixtureRequest
) -> None:  # R5.4
    ours = [entry for entry in catalog.catalog().entries if entry.value != "handlers.onnx.format:FORMAT"]
    toy = FormatEntry(value="tests.toolchains.toy_format:ONNX")
    catalog.use([*ours, toy])
    request.addfinalizer(lambda: catalog.use([*ours, FormatEntry(value="handlers.onnx.format:FORMAT")]))
    monkeypatch.setattr(registry, "definitions", lambda: fake.chains.known)
    here = formats_here(tmp_path)
    row = here.variants["onnx-int8"]
    assert not row.available and row.lacks == ("the toolchain fake",)
    assert here.toolchains["fake"].stages == ("onnx-int8",)
    settings = Settings.model_validate({"state": {"directory": tmp_path}, "output": {"directory": tmp_path / "out"}})
    cost = "it downloads about 16.7 MiB, needs up to 50.0 MiB of disk and about 5 s"
    lacks = f"the toolchain fake, which is not installed ({cost})"
    assert f"export.variants: onnx-int8 needs {lacks}; run `ckptd toolchain install fake`, or leave it out" in examine(settings).problems
    found = examine(settings.model_copy(update={"toolchains": ToolchainSettings(auto_install=True)}))
    comes = f"export.variants: onnx-int8 needs {lacks}; it is installed before the first export that needs it (toolchains.auto_install)"
    assert comes in found.warnings and not [one for one in found.problems if "fake" in one]
    assert formats_here(fake.state).variants["onnx-int8"].available


def test_the_resume_key_knows_the_toolchains_requirements(
    monkeypatch: pytest.MonkeyPatch, fake: Fake, context: StageContext, tmp_path: Path
) -> None:
    plain = spec_of("pytorch")
    inside = replace(plain, toolchain="fake")
    shutil.copytree(fake.chains.known["fake"].requirements.parent, tmp_path / "known")
    monkeypatch.setattr(registry, "DEFINITIONS", tmp_path / "known")
    job = JobRow("job", "running", context.checkpoint, context.work, Path("/pin"), Path("/target"), None, "now", None, None)
    first = stage_key(inside, job, {}, None, "cpu")
    assert first != stage_key(plain, job, {}, None, "cpu")
    (tmp_path / "known" / "fake.txt").write_text("fakelib==3.0")
    assert stage_key(inside, job, {}, None, "cpu") != first
