"""A check that names a toolchain runs there, and so does the engine that it starts: with that environment's libraries and no others.

The toolchain is an environment made here without a network. It holds `fakelib`, which the main environment has in another version that
must not be imported, and lacks `mainlib`, which the main environment has. The format is another package's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.config.settings import Settings, ToolchainSettings
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs import verdicts
from daemon.contract.jobs.figures import LiveFigures
from daemon.contract.jobs.messages import Outcome, StageResult, Verdict
from daemon.contract.jobs.plan import spec_of
from daemon.operating.diagnosis.doctor import examine, formats_here
from daemon.toolchains.overview import costs
from daemon.toolchains.registry import IN_USE, MANIFEST, Manifest, Toolchains, definitions
from handlers.onnx.format import FORMAT
from handlers.validate import record
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from tests.runner.conftest import make_desk  # noqa: F401
from tests.runner.desk import Desks
from tests.service import Service
from tests.toolchains.conftest import CONTRACT, ROOT
from tests.workers.helpers import make_context

DECLARATION = """
from daemon.contract.formats.declaration import Format, Limits, Variant
from daemon.contract.formats.thresholds import Thresholds

FORMAT = Format(
    name="tabled", about="a table of logits", engines={"tabled": {"causal": "tabled_format.engine:TabledEngine"}},
    variants=(Variant(
        "tabled", "tabled_format.stage:run", 1, about="a table of logits", needs=("merge",),
        limits=Limits("tabled", cache=1e-3, padding=1e-3, toolchain="fake"), thresholds=Thresholds(agreement=1, kl=0, error=0),
    ),),
)
"""
ENGINE = """
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import fakelib
import numpy as np

ABSENT = ("mainlib", "neighbour", "tests")


class TabledEngine:
    vocabulary, context_length, end_tokens = 8, 64, ()

    def __init__(self, spec):
        self._table = np.load(Path(spec.folder, "table.npy"))
        asked = "import importlib.util as u; print([n for n in %r if u.find_spec(n)])" % (ABSENT,)
        own = subprocess.run([sys.executable, "-c", asked], cwd="/", capture_output=True, text=True, check=True)
        Path(spec.folder, "seen.json").write_text(json.dumps({
            "fakelib": fakelib.VERSION, "prefix": sys.prefix, "absent": [name for name in ABSENT if importlib.util.find_spec(name)],
            "of_a_child": own.stdout.strip(), "handlers": importlib.util.find_spec("handlers").origin,
        }))

    @staticmethod
    def prepare(spec):
        pass

    def step(self, input_ids, attention_mask, position_ids, cache):
        return self._table[input_ids], True
"""


@dataclass(frozen=True)
class Bench:
    """A job's files, the environments, and how its stages are started."""

    folder: Path
    code: Path
    """Folder that holds the packages of ckptd."""
    environment: dict[str, str]
    """Variables of the main environment."""
    chain: Path

    @property
    def seen(self) -> dict[str, Any]:
        """What the engine found around it."""
        found: dict[str, Any] = json.loads((self.folder / "tabled" / "seen.json").read_text())
        return found

    def run(self, stage: str, entry: str, inputs: dict[str, Path], *, inside: bool) -> StageResult:
        """Run a stage as the daemon does."""
        base = make_context(self.folder / stage, stage, entry)
        formats = (*base.formats, FormatEntry(value="tabled_format.format:FORMAT", root=str(self.folder / "foreign")))
        context = base.model_copy(update={
            "formats": formats, "inputs": {name: str(path) for name, path in inputs.items()}, "cache": str(self.folder / "cache"),
            "toolchain": "fake" if inside else "",
        })  # fmt: skip
        job = Path(context.result).with_name("job.json")
        job.parent.mkdir(parents=True)
        value = json.loads(context.model_dump_json())
        value["work"]["validation"]["thresholds"]["tabled"] = {"agreement": 1, "kl": 1e-6, "error": 1e-3}
        job.write_text(json.dumps(value))
        bootstrap = self.code / "handlers" / "toolchains" / "bootstrap.py"
        python = [str(self.chain / "bin" / "python"), "-I", "-u", str(bootstrap)] if inside else [sys.executable, "-m"]
        command = [*python, "handlers", str(job)]
        done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return StageResult.model_validate_json(Path(context.result).read_bytes())

    def check(self) -> StageResult:
        """Run the check of the variant, in its toolchain."""
        inputs = {"reference": self.folder / "reference", "tabled": self.folder / "tabled"}
        return self.run("check-tabled", "handlers.validate.check:run", inputs, inside=True)

    def speed(self) -> StageResult:
        """Run the measurement of its speed, in the main environment."""
        checked = self.folder / "check-tabled" / "staging"
        inputs = {"merge": self.folder, "reference": self.folder / "reference", "tabled": self.folder / "tabled", "check-tabled": checked}
        return self.run("speed", "handlers.validate.speed:run", inputs, inside=False)


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toolchain with what a check needs and `fakelib`. Read only."""
    return chain_in(tmp_path_factory.mktemp("chains") / "fake-0123456789ab", "of the toolchain")


def chain_in(folder: Path, version: str) -> Path:
    """Such a toolchain, with this version of `fakelib`."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in (*CONTRACT, "numpy", "numpy.libs"):
        (path,) = (Path(np.__file__).parents[1] / one for one in (name, f"{name}.py") if (Path(np.__file__).parents[1] / one).exists())
        (site / path.name).symlink_to(path)
    (site / "fakelib.py").write_text(f"VERSION = {version!r}\n")
    (folder / IN_USE).touch()
    (folder / MANIFEST).write_text("{}")
    return folder


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, chain: Path) -> Bench:
    """ckptd as a repository, or ("installed") as packages beside what else is installed with it."""
    lib, code = tmp_path / "lib", ROOT
    lib.mkdir()
    if getattr(request, "param", "") == "installed":
        code = lib
        for name in ("daemon", "handlers"):
            shutil.copytree(ROOT / name, lib / name, ignore=shutil.ignore_patterns("__pycache__"))
    (lib / "fakelib.py").write_text("raise RuntimeError('this is the fakelib of the main environment')\n")
    (lib / "mainlib.py").touch()
    package = tmp_path / "foreign" / "tabled_format"
    package.mkdir(parents=True)
    (package.parent / "neighbour.py").touch()
    for name, text in (("__init__", ""), ("format", DECLARATION), ("engine", ENGINE)):
        (package / f"{name}.py").write_text(text)
    (tmp_path / "cache" / "toolchains").mkdir(parents=True)
    (tmp_path / "cache" / "toolchains" / "fake").symlink_to(chain)
    made(tmp_path)
    paths = os.pathsep.join(map(str, dict.fromkeys([code, lib, tmp_path / "foreign"])))
    return Bench(tmp_path, code, {**os.environ, "PYTHONPATH": paths}, chain)


def made(folder: Path) -> None:
    """An artifact and the reference that it equals: the next token follows from the last one by a table."""
    table = np.random.default_rng(5).normal(size=(8, 8)).astype(np.float32)
    ids, tokens = [1, 2, 3], []
    for _ in range(8):
        tokens.append(int(table[[*ids, *tokens][-1]].argmax()))
    (folder / "tabled").mkdir()
    np.save(folder / "tabled" / "table.npy", table)
    (folder / "reference" / "logits").mkdir(parents=True)
    np.save(folder / "reference" / "logits" / "0.npy", table[[*ids, *tokens]])
    sample = Sample("a text", ids, ids, tokens, None, list(range(11)), folder / "reference" / "logits" / "0.npy")
    record.write_reference(folder / "reference", Reference([sample], 1.0, ids, 4, False, LiveFigures(), None))


@pytest.mark.parametrize("bench", ["source", "installed"], indirect=True)
def test_an_engine_runs_in_its_checks_toolchain_and_sees_nothing_of_the_main_environment(bench: Bench) -> None:
    result = bench.check()
    assert result.outcome is Outcome.SUCCEEDED, result.fault
    (check,) = result.checks
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["agreement"] == 1.0 and check.figures["cache_error_max_absolute"] == 0.0
    assert bench.seen == {
        "fakelib": "of the toolchain", "prefix": str(bench.chain), "absent": [], "of_a_child": "[]",
        "handlers": str(bench.code / "handlers" / "__init__.py"),
    }  # fmt: skip


@pytest.mark.slow
def test_speed_is_measured_in_the_toolchain_of_the_check_or_says_what_is_missing(bench: Bench) -> None:
    bench.check()
    (bench.folder / "tabled" / "seen.json").unlink()
    result = bench.speed()
    assert result.outcome is Outcome.SUCCEEDED, result.fault
    assert result.figures["speed"]["tabled"]["tokens_per_second"] > 0
    assert bench.seen["fakelib"] == "of the toolchain" and bench.seen["absent"] == []
    (bench.folder / "cache" / "toolchains" / "fake").unlink()
    shutil.rmtree(bench.folder / "speed")
    result = bench.speed()
    assert result.outcome is Outcome.SUCCEEDED and result.figures["speed"] == {}
    told = "The speed of tabled could not be measured: the toolchain fake is not installed (`ckptd toolchain install fake` installs it)."
    assert told in result.warnings


def test_an_engine_whose_library_the_toolchain_lacks_passes_nothing_and_names_the_toolchain(bench: Bench, tmp_path: Path) -> None:
    bare = tmp_path / "fake-ba9876543210"
    shutil.copytree(bench.chain, bare, symlinks=True, ignore=shutil.ignore_patterns("fakelib*", "__pycache__"))
    result = replace(bench, chain=bare).check()
    (check,) = result.checks
    assert check.verdict is Verdict.FAILED
    assert check.reasons == ("it could not be run: its engine can't be imported in the toolchain fake: No module named 'fakelib'",)
    assert check.remedy == "run `ckptd toolchain check fake`, which says whether it is complete"


def test_a_declaration_that_the_toolchain_cannot_read_says_so(bench: Bench) -> None:
    declaration = bench.folder / "foreign" / "tabled_format" / "format.py"
    declaration.write_text("import mainlib\n" + declaration.read_text())
    result = bench.check()
    assert result.outcome is Outcome.PERMANENT and result.fault is not None and result.fault.code == "engine-missing"
    assert "the format tabled_format.format:FORMAT was left out: ModuleNotFoundError: No module named 'mainlib'" in result.fault.cause


WANTING = replace(
    FORMAT,
    variants=tuple(
        replace(one, limits=replace(one.limits, toolchain="optimum")) if one.name == "onnx" else one for one in FORMAT.variants
    ),
)  # fmt: skip
"""The ONNX format, with the check of the variant `onnx` wanting the toolchain `optimum`."""


@pytest.fixture
def wanting() -> Iterator[None]:
    """That format instead of our own."""
    before = catalog.catalog().entries
    ours = FormatEntry(value="handlers.onnx.format:FORMAT")
    others = [entry for entry in before if entry.value != ours.value]
    catalog.use([*others, FormatEntry(value=f"{__name__}:WANTING", root=str(ROOT))])
    yield
    catalog.use(before)


def installed(state: Path) -> None:
    """A folder that counts as the installed toolchain `optimum`."""
    chains = Toolchains(state)
    folder = chains.folder("optimum")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    manifest = Manifest(
        name="optimum", digest=definitions()["optimum"].digest, python="3", installed="2026-01-01T00:00:00+00:00", seconds=1, size=1,
        packages={}, probe={},
    )  # fmt: skip
    (folder / IN_USE).touch()
    (folder / MANIFEST).write_text(manifest.model_dump_json())


@pytest.mark.usefixtures("wanting")
def test_a_check_whose_toolchain_is_missing_leaves_its_artifact_unverified_until_it_is_there(make_desk: Desks) -> None:  # noqa: F811
    assert spec_of("check-onnx").toolchain == "optimum" and spec_of("onnx").toolchain == ""
    desk = make_desk()
    desk.add("run", 1, variants=("pytorch", "onnx"))
    desk.tick(20)
    assert "run-1 onnx" in desk.started and "run-1 check-onnx" not in desk.started
    assert desk.state("run-1") == "partial"
    job = desk.journal.jobs.get("run-1")
    assert job is not None
    checks = {check.variant: check for check in verdicts.judge(desk.journal.attempts.facts(job, desk.journal.stages.of(job.id)))}
    assert checks["pytorch"].verdict is Verdict.PASSED
    assert checks["onnx"].verdict is Verdict.UNVERIFIED
    assert checks["onnx"].reasons == ("it could not be checked: the toolchain optimum is not installed",)
    assert checks["onnx"].remedy == "run `ckptd toolchain install optimum`"
    installed(desk.runner.settings.state_directory)
    job.pin.mkdir()  # as `ckptd queue retry` does
    assert desk.journal.jobs.retry("run-1")
    desk.tick(20)
    assert desk.state("run-1") == "succeeded"
    assert [line for line in desk.started if line.endswith(" onnx")] == ["run-1 onnx"], "the export itself was kept"


@pytest.mark.usefixtures("wanting")
def test_formats_and_check_say_that_a_variant_can_be_made_and_not_checked(tmp_path: Path) -> None:
    row = formats_here(tmp_path).variants["onnx"]
    known = definitions()["optimum"]
    cost = costs(known.fetched, known.disk, known.seconds)
    assert cost == "downloads about 270 MiB, needs up to 2.50 GiB of disk and about 90 s"
    need = f"the toolchain optimum is not installed (it {cost}); run `ckptd toolchain install optimum`"
    assert row.available and row.check_needs == (need,) and row.check_toolchain == "optimum"
    settings = Settings.model_validate({"state": {"directory": tmp_path}, "output": {"directory": tmp_path / "out"}})
    found = examine(settings)
    assert f"export.variants: onnx can't be checked here and would not be published: {need}" in found.warnings
    allowed = settings.model_copy(update={"validate": settings.validate.model_copy(update={"publish_unverified": ("onnx",)})})
    assert f"export.variants: onnx can't be checked here and would be published unverified: {need}" in examine(allowed).warnings
    assert not [problem for problem in found.problems if "optimum" in problem]
    by_itself = examine(settings.model_copy(update={"toolchains": ToolchainSettings(auto_install=True)})).warnings
    assert (
        f"export.variants: onnx can't be checked yet: the toolchain optimum is not installed (it {cost}); it is installed before the first"
        " export that needs it (toolchains.auto_install)"
    ) in by_itself
    installed(tmp_path)
    assert formats_here(tmp_path).variants["onnx"].check_needs == ()


def test_a_daemon_says_at_its_start_what_its_variants_lack_and_that_exports_are_paused(make_service: Callable[..., Service]) -> None:
    service = make_service(variants=("pytorch", "gguf-q8_0", "gguf-f16", "web-int8"))
    service.start()
    service.wait_for(lambda value: value["daemon"]["running"])
    assert service.run_verb("queue", "pause") == 0, service.said
    assert service.stop() == 0
    before = len(service.log())  # the first daemon may have been so far only just now
    service.start()
    service.wait_for(lambda value: value["daemon"]["running"])
    assert service.stop() == 0
    log = service.log()
    assert log.count("gguf-q8_0, gguf-f16 can't be made: the toolchain gguf is not installed; run `ckptd toolchain install gguf`") == 2
    assert "web-int8 can't be checked: the toolchain web is not installed" in log
    assert log[before:].count("all exports are paused, and none begins until `ckptd queue resume`") == 1
