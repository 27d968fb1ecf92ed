"""A format of another package: installed, and everything that knows formats knows it, without a line of ours touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "npz"
QUICK = "samples = 2\nmost_samples = 2\nnew_tokens = 6\nspeed_tokens = 8\n"


class Box:
    """A box on which the package is installed."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
            "HF_HUB_OFFLINE": "1",
            "CKPTD_LIMITS__PRIORITY": "normal",
        }
        self.config = folder / "config.toml"

    def configure(self, text: str = "", variants: tuple[str, ...] = ("pytorch", "npz", "npz-coarse")) -> None:
        """The configuration, with `text` at its end."""
        self.config.write_text(
            f'[output]\ndirectory = "{self.folder}/exports"\nkeep_rejected = true\n[state]\ndirectory = "{self.folder}/state"\n'
            f"[export]\nvariants = {json.dumps(variants)}\n[validate]\n{QUICK}{text}"
        )

    def ckptd(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a verb with this configuration."""
        command = [sys.executable, "-m", "daemon", *arguments, "--config", str(self.config)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env={**self.environment, **environment}, timeout=200
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package."""
    source = tmp_path_factory.mktemp("source") / "npz"
    shutil.copytree(PACKAGE, source)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder), str(source)], check=True, capture_output=True)
    return folder


@pytest.fixture
def box(tmp_path: Path, site: Path) -> Box:
    made = Box(tmp_path, site)
    made.configure()
    return made


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, site: Path, pico_checkpoint: Path) -> Iterator[tuple[Path, Box]]:
    """An export with the package's two variants."""
    made = Box(tmp_path_factory.mktemp("box"), site)
    made.configure("[npz]\ncompress = true\n")
    done = made.ckptd("export", str(pico_checkpoint))
    assert done.returncode == 3, done.stdout + done.stderr
    (report,) = made.folder.glob("exports/**/report.json")
    yield report.parent, made


def test_formats_lists_it(box: Box) -> None:
    rows = json.loads(box.ckptd("formats", "--json").stdout)["variants"]
    assert list(rows)[-2:] == ["npz", "npz-coarse"]
    assert rows["npz"]["available"] and rows["npz"]["about"] == "arrays of numpy in fp32"
    assert rows["npz"]["package"].startswith("npz-format ") and rows["pytorch"]["package"].startswith("ckptd ")


def test_its_options_are_keys_of_the_configuration(box: Box) -> None:
    box.configure("[npz]\ncompres = true\n")
    said = box.ckptd("check").stderr
    assert "npz.compres: is not a known key; did you mean 'compress'?" in said
    box.configure()
    assert "npz.compress: must be true or false" in box.ckptd("check", CKPTD_NPZ__COMPRESS="perhaps").stderr
    assert box.ckptd("check", CKPTD_NPZ__COMPRESS="true").returncode == 0


def test_its_part_of_the_configuration_is_written_from_its_declaration(box: Box) -> None:
    command = [sys.executable, "-m", "daemon.config.template"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=box.environment).stdout
    assert "# How weights become .npz.\n[npz]\n# Deflate the arrays. Smaller, and slow to read.\ncompress = false\n" in text
    shown = box.ckptd("config", "show", "validate.thresholds.npz-coarse", "--json").stdout
    assert json.loads(shown)["values"]["validate.thresholds.npz-coarse.agreement"] == {"value": 0.999, "origin": "default"}


@pytest.mark.slow
def test_it_goes_the_whole_way(exported: tuple[Path, Box]) -> None:
    folder, _ = exported
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    checks = {one["variant"]: one for one in report["artifacts"]}
    assert {name: one["verdict"] for name, one in checks.items()} == {"pytorch": "passed", "npz": "passed", "npz-coarse": "failed"}
    assert checks["npz"]["figures"]["merged_error_max_absolute"] < 1e-4
    assert checks["npz"]["figures"]["cache_error_max_absolute"] < 1e-3
    assert checks["npz"]["figures"]["speed_over_pytorch"] > 0
    assert not (folder / "npz-coarse").exists() and (folder / "rejected" / "npz-coarse").is_dir()
    with np.load(folder / "npz" / "weights.npz") as weights:
        assert "model.norm.weight" in weights
    assert re.search(r"kl.*> *1e-09|above the limit|limit of 1e-09", " ".join(checks["npz-coarse"]["reasons"])) is not None


@pytest.mark.slow
def test_its_threshold_and_its_fallback_are_told(exported: tuple[Path, Box]) -> None:
    folder, _ = exported
    report = json.loads((folder / "report.json").read_text())
    (coarse,) = (one for one in report["artifacts"] if one["variant"] == "npz-coarse")
    assert "npz" in coarse["remedy"]


@pytest.mark.slow
def test_readme_and_page_show_it_and_its_example_runs(exported: tuple[Path, Box]) -> None:
    folder, _ = exported
    readme = (folder / "README.md").read_text()
    (code,) = re.findall(r"## npz/\n.*?```python\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert "model.norm.weight (64,)" in done.stdout
    assert "npz-coarse" in (folder / "report.html").read_text()


def test_without_the_package_its_keys_and_jobs_are_refused_with_a_sentence(box: Box) -> None:
    box.configure("[npz]\ncompress = true\n")
    done = box.ckptd("check", PYTHONPATH="")
    assert done.returncode == 2
    assert "there is no variant 'npz'" in done.stderr and "npz: is not a known key" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_is_broken_or_takes_our_names_is_left_out_and_named(tmp_path: Path, site: Path, box: Box) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(site, bad)
    (bad / "npz_format" / "format.py").write_text("import no_such_library\n")
    done = box.ckptd("check", PYTHONPATH=str(bad))
    assert done.returncode == 2 and "No module named 'no_such_library'" in done.stderr and "Traceback" not in done.stderr
    box.configure(variants=("pytorch",))
    value = json.loads(box.ckptd("formats", "--json", PYTHONPATH=str(bad)).stdout)
    assert "npz" not in value["variants"] and "onnx" in value["variants"]
    assert value["problems"] == ["the format npz_format.format:FORMAT was left out: ModuleNotFoundError: No module named 'no_such_library'"]
    text = (site / "npz_format" / "format.py").read_text()
    (bad / "npz_format" / "format.py").write_text(text.replace('"npz-coarse", "npz_format', '"onnx", "npz_format'))
    value = json.loads(box.ckptd("formats", "--json", PYTHONPATH=str(bad)).stdout)
    assert value["problems"] == ["the format npz (npz_format.format:FORMAT) was left out: there is another stage onnx"]


def _changed(site: Path, folder: Path, file: str, old: str, new: str) -> str:
    """PYTHONPATH of a copy of the package with one change, under another version, so that nothing kept is taken for it."""
    shutil.copytree(site, folder)
    for path, before, after in (("format.py", ':full", 1,', f':full", {2 + len(folder.name)},'), (file, old, new)):
        text = (folder / "npz_format" / path).read_text()
        assert before in text
        (folder / "npz_format" / path).write_text(text.replace(before, after))
    return f"{folder}{os.pathsep}{ROOT}"


@pytest.mark.slow
def test_a_stage_that_returns_nothing_is_named_with_its_log(tmp_path: Path, site: Path, box: Box, pico_checkpoint: Path) -> None:
    box.configure(variants=("npz",))
    path = _changed(site, tmp_path / "nothing", "stage.py", "return _write(context, arrays)", "_write(context, arrays)")
    done = box.ckptd("export", str(pico_checkpoint), PYTHONPATH=path)
    assert done.returncode == 75, done.stdout + done.stderr
    said = re.search(r"Could not run the stage npz \((\S+)\): TypeError: npz_format.stage:full returned NoneType", done.stderr)
    assert said is not None, done.stderr
    assert "Traceback" in Path(said[1]).read_text()


@pytest.mark.slow
def test_what_is_wrong_with_an_engine_is_in_the_log_and_in_the_report(tmp_path: Path, site: Path, box: Box, pico_checkpoint: Path) -> None:
    box.configure(variants=("npz",))
    path = _changed(
        site, tmp_path / "raising", "engine.py", "        config = ", "        raise RuntimeError('no arrays')\n        config = "
    )
    box.ckptd("export", str(pico_checkpoint), PYTHONPATH=path)
    (log,) = box.folder.glob("state/foreground/*/jobs/*/check-npz.1/log.txt")
    assert "RuntimeError: no arrays" in log.read_text() and "Traceback" in log.read_text()
    path = _changed(site, tmp_path / "of another kind", "format.py", '{"causal":', '{"encoder":')
    box.ckptd("export", str(pico_checkpoint), "--force", PYTHONPATH=path)
    (report,) = box.folder.glob("exports/**/step-4.failed/report.json")
    (check,) = json.loads(report.read_text())["artifacts"]
    assert check["reasons"] == ["no engine here can run npz: the model is of the kind causal, its engine npz takes encoder"]
