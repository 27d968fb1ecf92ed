"""Adapters that `[[merge.add]]` or --add merges beside a checkpoint's own: the whole way, and what is refused when it is taken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.checkpoints.pinning.pins import identify
from daemon.contract.jobs.messages import ADDITIONS
from daemon.operating.integrity.fsck import examine
from daemon.publishing.verification import verify
from tests import models
from tests.merge import helpers
from tests.sampling import some
from tests.service import Service
from tests.verbs import run_verb

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Made:
    """A base in fp32, a checkpoint of its training, and other adapters over it. Read only."""

    base: Path
    checkpoint: Path
    style: Path
    facts: Path


@dataclass
class Box:
    """A folder with a configuration, in which `ckptd` is run."""

    folder: Path
    made: Made

    def config(self, extra: str) -> None:
        (self.folder / "c.toml").write_text(
            f'[output]\ndirectory = "exports"\n[state]\ndirectory = "state"\n[export]\nvariants = ["pytorch"]\n'
            f"[validate]\nsamples = 2\nmost_samples = 2\nnew_tokens = 6\nspeed_tokens = 0\n{extra}"
        )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`ckptd WORDS` on the configuration."""
        return run_verb([*words, "--config", str(self.folder / "c.toml")], ROOT, {**os.environ, **environment}, timeout=280)

    def export(self, *words: str, checkpoint: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """`ckptd export` of the checkpoint."""
        return self.run("export", str(checkpoint or self.made.checkpoint), *words, **environment)

    def exports(self) -> dict[str, dict[str, Any]]:
        """Name of each export's folder → its report."""
        found = sorted((self.folder / "exports").glob("*/*/report.json"))
        return {path.parent.name: json.loads(path.read_text()) for path in found if not path.parent.is_symlink()}

    def exported(self, name: str) -> Path:
        (folder,) = (self.folder / "exports").glob(f"*/{name}")
        return folder

    def jobs(self) -> list[Path]:
        return sorted((self.folder / "state").glob("foreground/*/jobs/*"))

    def pins(self) -> list[Path]:
        return sorted((self.folder / "state").glob("foreground/*/pins/*"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    base = models.make_base(folder / "base", dtype="float32")
    run = models.train_run(base, folder / "runs/one", steps=2)
    style = helpers.make_adapter(base, folder / "style", seed=4, r=2, target_modules=["q_proj", "down_proj"])
    patterns = {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"v_proj": 5}, "use_rslora": True}
    facts = helpers.make_adapter(base, folder / "facts", seed=5, r=3, target_modules=["v_proj", "o_proj"], **patterns)
    return Made(base, run / "checkpoint-2", style, facts)


@pytest.fixture
def box(made: Made, tmp_path: Path) -> Box:
    one = Box(tmp_path, made)
    one.config("")
    return one


def merged_by_peft(base: Path, *adapters: tuple[Path, float]) -> dict[str, torch.Tensor]:
    """The base with all adapters merged by PEFT itself, each with its factor, in fp32."""
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    (first, weight), *others = adapters
    live = PeftModel.from_pretrained(model, first, adapter_name="0")
    weights = {"0": weight}
    for number, (folder, factor) in enumerate(others, 1):
        live.load_adapter(folder, adapter_name=str(number))
        weights[str(number)] = factor
    for module in live.modules():
        if isinstance(module, LoraLayer):
            module.scaling = {name: value * weights[name] for name, value in module.scaling.items()}
    return dict(live.merge_and_unload(adapter_names=list(weights)).state_dict())


def largest_difference(folder: Path, theirs: dict[str, torch.Tensor]) -> float:
    mine = helpers.stored(folder)
    assert mine.keys() <= theirs.keys()
    return max(float((value - theirs[name]).abs().max()) for name, value in mine.items())


@pytest.mark.slow
def test_adapters_of_the_configuration_are_merged_verified_and_named(box: Box) -> None:
    made = box.made
    box.config(
        f'[merge]\nweight = 0.75\n[[merge.add]]\npath = "{made.style}"\nweight = 0.5\n[[merge.add]]\npath = "{made.facts}"\nweight = -0.3\n'
    )
    done = box.export()
    assert done.returncode == 0, done.stdout + done.stderr
    report = box.exports()["step-2"]
    (artifact,) = report["artifacts"]
    assert artifact["verdict"] == "passed" and artifact["figures"]["error_max"] < 1e-4
    theirs = merged_by_peft(made.base, (made.checkpoint, 0.75), (made.style, 0.5), (made.facts, -0.3))
    folder = box.exported("step-2")
    # PEFT adds one delta after the other to the weight, and rounds each time; here the sum of all is added.
    assert largest_difference(folder / "pytorch", theirs) < 1e-6
    assert largest_difference(folder / "pytorch", merged_by_peft(made.base, (made.checkpoint, 0.75), (made.style, 0.5))) > 1e-3
    expected = [
        {"name": "style", "path": str(made.style), "weight": 0.5, "digest": identify(made.style)},
        {"name": "facts", "path": str(made.facts), "weight": -0.3, "digest": identify(made.facts)},
    ]
    assert report["checkpoint"]["additions"] == expected and report["checkpoint"]["weight"] == 0.75
    assert report["reference"]["method"] == "LORA adapter × 0.75 + style × 0.5 + facts × -0.3 applied at run time, not merged"
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    assert manifest["additions"] == expected and manifest["identity"] == report["checkpoint"]["identity"]
    readme = (folder / "README.md").read_text()
    assert "| Factor of its adapter | 0.75 |" in readme
    assert all(f"| Merged with | {one['name']} × {one['weight']}" in readme and one["digest"] in readme for one in expected)
    assert "style × 0.5" in (folder / "report.html").read_text()
    assert box.pins() == [], "the pins of the additions go with the checkpoint's"
    assert verify(folder, deep=True).problems == ()


@pytest.mark.slow
def test_another_mixture_is_another_export_in_a_place_of_its_own(box: Box, made: Made) -> None:
    style = shutil.copytree(made.style, box.folder / "style")
    assert box.export().returncode == 0
    assert box.export("--add", f"{style}=0.5").returncode == 0
    first = box.exports()
    assert len(first) == 2 and first["step-2"]["checkpoint"]["additions"] == [], "the first export stays what it was"
    shutil.copy(made.facts / "adapter_model.safetensors", style)
    shutil.copy(made.facts / "adapter_config.json", style)
    again = box.export("--add", f"{style}=0.5")
    assert again.returncode == 0 and "already exported" not in again.stderr
    reports = box.exports()
    assert first.items() <= reports.items() and len(reports) == 3, "what is finished is left alone when an addition changes"
    identities = {report["checkpoint"]["identity"] for report in reports.values()}
    assert len(identities) == 3 and len({report["export_id"] for report in reports.values()}) == 3
    (newest,) = reports.keys() - first.keys()
    assert largest_difference(box.exported(newest) / "pytorch", merged_by_peft(made.base, (made.checkpoint, 1.0), (made.facts, 0.5))) < 1e-6
    assert "already exported" in box.export("--add", f"{style}=0.5").stderr, "the same mixture is exported once"
    (state,) = (box.folder / "state").glob("foreground/*")
    assert examine(state, box.folder / "exports", quiescent=True, deep=True).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before.add-job", "after.add-job"])
def test_a_job_merges_what_was_pinned_with_it_and_a_pin_without_a_job_is_made_anew(
    fault: str, made: Made, tmp_path: Path, make_service: Callable[..., Service]
) -> None:
    style = shutil.copytree(made.style, tmp_path / "style")
    service = make_service(extra=f'[[merge.add]]\npath = "{style}"\nweight = 0.5\n')
    service.add(made.checkpoint)
    service.start(fault)
    service.wait_dead()
    (pin,) = (service.state / "pins").iterdir()
    assert identify(pin / ADDITIONS / "0") == identify(made.style)
    shutil.rmtree(style)
    shutil.copytree(made.facts, style)
    service.start()
    (job,) = service.wait_ended()
    assert job["state"] == "succeeded"
    merged = made.style if fault == "after.add-job" else made.facts
    report = json.loads((Path(job["target"]) / "report.json").read_text())
    assert [one["digest"] for one in report["checkpoint"]["additions"]] == [identify(merged)]
    theirs = merged_by_peft(made.base, (made.checkpoint, 1.0), (merged, 0.5))
    assert largest_difference(Path(job["target"]) / "pytorch", theirs) < 1e-6
    service.stop()
    assert list((service.state / "pins").iterdir()) == []
    assert examine(service.state, service.exports, quiescent=True, deep=True).findings == ()


@pytest.mark.slow
def test_a_checkpoint_whose_addition_is_missing_is_told_and_taken_when_that_is_there(
    made: Made, tmp_path: Path, make_service: Callable[..., Service]
) -> None:
    service = make_service(extra=f'[[merge.add]]\npath = "{tmp_path}/style"\n')
    path = service.add(made.checkpoint)
    service.start()
    value = service.wait_for(lambda v: v["delayed"])
    (entry,) = value["delayed"]
    assert (entry["path"], entry["code"]) == (str(path), "source-away")
    assert "it is not there now" in entry["why"] and value["jobs"] == []
    shutil.copytree(made.style, tmp_path / "style")
    (job,) = service.wait_ended()
    assert job["state"] == "succeeded"
    report = json.loads((Path(job["target"]) / "report.json").read_text())
    assert [one["path"] for one in report["checkpoint"]["additions"]] == [f"{tmp_path}/style"]


@pytest.mark.slow
def test_with_no_hours_to_wait_a_checkpoint_whose_addition_is_missing_is_reported(
    made: Made, tmp_path: Path, make_service: Callable[..., Service]
) -> None:
    service = make_service(extra=f'[limits]\naway_hours = 0\n[[merge.add]]\npath = "{tmp_path}/style"\n')
    service.add(made.checkpoint)
    service.start()
    (job,) = service.wait_ended()
    assert job["state"] == "failed"
    (report,) = service.exports.glob("*/*.failed/report.json")
    failures = json.loads(report.read_text())["failures"]
    assert any("there is no such directory" in failure["sentence"] for failure in failures), failures
    shutil.copytree(made.style, tmp_path / "style")
    service.add(made.checkpoint, "another")
    assert sorted(one["state"] for one in service.wait_ended(2)) == ["failed", "succeeded"]


REFUSED: dict[str, tuple[Callable[[Made, Path], Any], str]] = {
    "missing": (lambda made, path: None, "there is no such directory"),
    "a file": (lambda made, path: path.write_text("x"), "it is a file"),
    "empty": (lambda made, path: path.mkdir(), "it contains no adapter"),
    "incomplete": (
        lambda made, path: [
            shutil.copytree(made.style, path), os.truncate(path / "adapter_model.safetensors", 900),
        ],
        "adapter_model.safetensors: ",
    ),
    "a whole model": (lambda made, path: shutil.copytree(made.base, path), "it contains a whole model, not an adapter"),
    "another base": (
        lambda made, path: helpers.make_adapter(models.make_base(path.parent / "other", dtype="float32", seed=9), path),
        "which is another model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", some(REFUSED, of=4))
def test_what_cannot_be_added_is_refused_at_once_in_one_sentence(kind: str, box: Box, made: Made) -> None:
    make, said = REFUSED[kind]
    make(made, box.folder / "added")
    done = box.export("--add", str(box.folder / "added"))
    assert done.returncode == 1
    assert f"ckptd: Could not merge an adapter beside the checkpoint's own ({box.folder / 'added'}): " in done.stderr
    assert said in done.stderr and "Fix: " in done.stderr
    assert box.jobs() == [] and box.pins() == [] and box.exports() == {}


@pytest.mark.parametrize("kind", some(REFUSED, of=4))
def test_check_and_explain_say_what_cannot_be_added(kind: str, box: Box, made: Made) -> None:
    make, said = REFUSED[kind]
    make(made, box.folder / "added")
    box.config(f'[[merge.add]]\npath = "{box.folder / "added"}"\nweight = 0.5\n')
    explained, checked = box.run("explain", str(made.checkpoint)), box.run("check")
    assert said in explained.stdout and str(box.folder / "added") in explained.stdout
    assert f"0.5 × {box.folder / 'added'}" in checked.stdout
    if kind != "another base":  # which only a checkpoint tells
        assert checked.returncode == 2 and said in checked.stdout + checked.stderr


@pytest.mark.slow
def test_check_and_explain_have_nothing_against_adapters_that_can_be_added(box: Box, made: Made) -> None:
    box.config(f'[[merge.add]]\npath = "{made.style}"\n')
    assert "merge.add" not in box.run("explain", str(made.checkpoint)).stdout
    done = box.run("check")
    assert done.returncode == 0 and f"1 × {made.style}" in done.stdout and "merge.add" not in done.stdout
    assert "is a whole model without an adapter" in box.run("explain", str(made.base)).stdout


@pytest.mark.slow
def test_an_adapter_over_a_copy_of_the_base_is_taken_and_an_unknown_name_is_told(box: Box, made: Made) -> None:
    shutil.copytree(made.base, box.folder / "copy")
    adapter = shutil.copytree(made.style, box.folder / "style")
    helpers.edit_config(adapter, base_model_name_or_path=str(box.folder / "copy"))
    elsewhere = shutil.copytree(made.facts, box.folder / "facts")
    helpers.edit_config(elsewhere, base_model_name_or_path="org/elsewhere")
    done = box.export("--add", str(adapter), "--add", f"{elsewhere}=0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    told = [one["text"] for one in box.exports()["step-2"]["warnings"] if one["source"] == "job"]
    (warning,) = [text for text in told if "names the base" in text]
    assert "facts names the base 'org/elsewhere', which is not found here" in warning and "style" not in warning


@pytest.mark.parametrize(
    ("text", "weight"),
    some([("style=half", "'half'"), ("style=0", "'0'"), ("style=nan", "'nan'"), ("style=", "''"), ("style=1e30", "'1e30'")], of=2),
)
def test_a_weight_that_is_none_is_a_mistake_of_the_command_line(text: str, weight: str, box: Box) -> None:
    done = box.export("--add", text)
    assert done.returncode == 2 and f"its weight {weight} is not a number, or is 0" in done.stderr


def test_a_full_fine_tune_takes_no_additions(box: Box, made: Made) -> None:
    done = box.export("--add", str(made.style), checkpoint=made.base)
    assert done.returncode == 1 and "the checkpoint is a whole model without an adapter, and --add is for" in done.stderr
    assert "leave --add out" in done.stderr and "merge.add" not in done.stderr and "configuration" not in done.stderr


@pytest.mark.slow
def test_dora_beside_another_is_refused_by_the_merge_and_the_adapter_alone_is_not_published(box: Box, made: Made) -> None:
    dora = helpers.make_adapter(made.base, box.folder / "dora", use_dora=True)
    done = box.export("--add", str(dora))
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "only plain LoRA adapters can be combined or used with a factor" in said
    assert f"({dora})" in said and "and 0 " not in said, "named as its user knows it, not by its pin"
    box.config("")
    (box.folder / "c.toml").write_text((box.folder / "c.toml").read_text().replace('["pytorch"]', '["pytorch", "pytorch-adapter"]'))
    done = box.export("--add", str(made.style))
    assert done.returncode == 3
    report = next(report for report in box.exports().values() if report["status"] == "partial")
    verdicts = {one["variant"]: one["verdict"] for one in report["artifacts"]}
    assert verdicts == {"pytorch": "passed", "pytorch-adapter": "failed"}
    assert any(
        "the export merges style together with it, so the adapter alone is not" in failure["sentence"] for failure in report["failures"]
    )
