"""A checkpoint of a real training, exported to OpenVINO's forms by the command line; the README's commands run them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from handlers.openvino import tokenizer
from handlers.validate.workers.client import WorkerFailed
from tests import models
from tests.openvino import forms
from tests.toolchains import real
from tests.validate import sabotage
from tests.validate.bench import Bench

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
VARIANTS = ("openvino", "openvino-int8", "openvino-int4")


@pytest.fixture(scope="module")
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.export(run / "checkpoint-4", state, tmp_path_factory.mktemp("out, put"), VARIANTS)


def test_all_forms_pass_and_say_with_what_they_were_made(exported: Path) -> None:  # R2.4 R4.1
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    assert {one["variant"]: one["verdict"] for one in report["artifacts"] if one["variant"] in VARIANTS} == dict.fromkeys(
        VARIANTS, "passed"
    )
    assert {"openvino", "nncf"} <= set(report["versions"])
    for one in report["artifacts"]:
        if one["variant"] in VARIANTS:
            assert one["figures"]["speed_over_pytorch"] > 0
        if one["variant"] in VARIANTS[1:]:
            assert one["figures"]["twin_error"] < 1e-4 and 0 < one["figures"]["rounding_error"] < 0.2
    assert re.search(r"pip install openvino-genai==\d", (exported / "README.md").read_text())
    sizes = {one["variant"]: one["size_bytes"] for one in report["artifacts"]}
    assert sizes["openvino"] > sizes["openvino-int8"] > sizes["openvino-int4"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readmes_code_runs_in_openvino_genai_and_writes_what_the_model_writes(variant: str, exported: Path, toolchain: Path) -> None:
    readme = (exported / "README.md").read_text()
    section = readme.split(f"\n## {variant}/\n")[1].split("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.S)
    assert code, section
    for block in code:
        assert said(toolchain, exported, block)
    report = json.loads((exported / "report.json").read_bytes())
    sample = next(one for one in report["artifacts"] if one["variant"] == variant)["figures"]["sample"]
    asked = f"""
import json, openvino_genai
from handlers.openvino.session import EXACT
pipeline = openvino_genai.LLMPipeline({variant!r}, "CPU", **EXACT)
print(json.dumps(pipeline.generate({sample["prompt"]!r}, max_new_tokens=16, do_sample=False, apply_chat_template=False)))
"""
    written = json.loads(said(toolchain, exported, f"import sys; sys.path.append({str(ROOT)!r})\n{asked}"))
    assert len(written) > 4 and sample["text"].startswith(written)


def said(toolchain: Path, folder: Path, script: str) -> str:
    """What a script prints in the toolchain's Python."""
    command = [toolchain / "bin" / "python", "-I", "-c", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("libraries")
def test_a_tokenizer_that_reads_otherwise_is_left_out_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.make_base(tmp_path / "model", dtype="float32")
    graphs = forms.onnx(source, tmp_path / "onnx")
    folder, output = forms.make("openvino", source, graphs, tmp_path / "sound")
    assert output.figures["genai"] and (folder / tokenizer.ENCODER).is_file() and not output.warnings
    plain = tokenizer.Pair.encode
    monkeypatch.setattr(tokenizer.Pair, "encode", lambda self, text: plain(self, text)[:-1])
    folder, output = forms.make("openvino", source, graphs, tmp_path / "other")
    assert not output.figures["genai"] and not list(folder.glob("*tokenizer.xml")) and not list(folder.glob("openvino_*tokenizer.bin"))
    assert "reads 'How are you?' otherwise" in output.warnings[0]


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model = lab.made(source, "pytorch")
    bench = lab.bench(tmp_path / "scratch")
    folder, _ = forms.make("openvino", model, lab.made(source, "onnx"), tmp_path / "plain")
    checks = [bench.check("openvino", folder)]
    for variant in VARIANTS[1:]:
        smaller, _ = forms.make(variant, model, lab.made(source, "onnx"), tmp_path / variant, folder)
        checks.append(bench.check(variant, smaller))
    verdicts = [str(one.verdict) for one in checks]
    assert verdicts == ["passed"] * 3 if source == "sound" else verdicts[:2] == ["failed"] * 2, [one.reasons for one in checks]


@pytest.mark.usefixtures("libraries")
def test_a_damaged_block_and_a_cache_that_loses_a_token_are_caught(lab: sabotage.Lab, tmp_path: Path) -> None:
    import numpy as np

    from handlers.openvino import conversion, library

    model, bench = lab.made("sound", "pytorch"), lab.bench(tmp_path / "scratch")
    folder, _ = forms.make("openvino", model, lab.made("sound", "onnx"), tmp_path / "plain")
    assert not caught(bench, folder)
    shutil.copytree(folder, tmp_path / "damaged")  # a copy, since OpenVINO maps the weights of what it has opened
    damaged = tmp_path / "damaged" / "openvino_model.bin"
    whole = damaged.read_bytes()
    place = len(whole) // 2 & ~63
    damaged.write_bytes(whole[:place] + np.random.default_rng(0).normal(size=4096).astype(np.float32).tobytes() + whole[place + 16384 :])
    assert caught(bench, tmp_path / "damaged")
    ov = library.openvino()
    ir = ov.Core().read_model(folder / "openvino_model.xml")
    state = next(node for node in ir.get_ops() if node.get_type_name() == "Assign")
    kept = state.input_value(0)
    ops = ov.opset13

    def part(start: int, end: int) -> Any:
        return ops.slice(kept, *(ops.constant(np.array([one], np.int64)) for one in (start, end, 1, 2)))

    # Of the same length, since a shorter one is read beyond its end, which is a crash of the process.
    lost = ops.concat([part(0, -1), part(0, 1)], 2)
    state.input(0).replace_source_output(lost.output(0))
    (tmp_path / "cut").mkdir()
    for path in folder.iterdir():
        if not path.name.startswith("openvino_model"):
            (tmp_path / "cut" / path.name).write_bytes(path.read_bytes())
    ov.save_model(ir, tmp_path / "cut" / conversion.file_of(graph_of(folder)), compress_to_fp16=False)
    assert caught(bench, tmp_path / "cut")


def caught(bench: Bench, folder: Path) -> bool:
    """Whether the check fails, or refuses to compare what the model says."""
    try:
        return bench.check("openvino", folder).verdict == "failed"
    except WorkerFailed:
        return True


def graph_of(folder: Path) -> Any:
    from handlers.graphs import graphset

    return graphset.read(folder).graphs[0].model_copy(update={"file": "model.onnx"})
