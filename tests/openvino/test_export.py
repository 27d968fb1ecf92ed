"""A checkpoint of a real training, exported to OpenVINO's forms by the command line; the README's commands run them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.openvino.converting import tokenizer
from tests import models
from tests.exports.formats import FORMATS
from tests.openvino import forms
from tests.toolchains import real
from tests.validate import sabotage

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "openvino")


@pytest.mark.parametrize("variant", FORMATS["openvino"].variants)
def test_the_readmes_code_runs_in_openvino_genai_and_writes_what_the_model_writes(variant: str, exported: Path, toolchain: Path) -> None:
    code = real.blocks(exported, variant, "python")
    assert code
    for block in code:
        assert real.output_of(toolchain, exported, "-c", block)
    report = json.loads((exported / "report.json").read_bytes())
    figures = next(artifact for artifact in report["artifacts"] if artifact["variant"] == variant)["figures"]
    assert variant == "openvino" or 0 < figures["rounding_error"] < 0.2
    asked = f"""
import sys; sys.path.append({str(ROOT)!r})
import json, openvino_genai
from handlers.openvino.session import EXACT
pipeline = openvino_genai.LLMPipeline({variant!r}, "CPU", **EXACT)
print(json.dumps(pipeline.generate({figures["sample"]["prompt"]!r}, max_new_tokens=16, do_sample=False, apply_chat_template=False)))
"""
    written = json.loads(real.output_of(toolchain, exported, "-c", asked))
    assert len(written) > 4 and figures["sample"]["text"].startswith(written)


@pytest.mark.usefixtures("libraries")
def test_a_tokenizer_that_reads_otherwise_is_left_out_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.make_base(tmp_path / "model", dtype="float32")
    graphs = forms.onnx(source, tmp_path / "onnx")
    folder, output = forms.make("openvino", graphs, tmp_path / "sound")
    assert output.figures["genai"] and (folder / tokenizer.ENCODER).is_file() and not output.warnings
    plain = tokenizer.Pair.encode
    monkeypatch.setattr(tokenizer.Pair, "encode", lambda self, text: plain(self, text)[:-1])
    folder, output = forms.make("openvino", graphs, tmp_path / "other")
    assert not output.figures["genai"] and not list(folder.glob("*tokenizer.xml")) and not list(folder.glob("openvino_*tokenizer.bin"))
    assert "reads 'How are you?' otherwise" in output.warnings[0]


@pytest.mark.usefixtures("libraries")
def test_a_damaged_block_and_a_cache_that_loses_a_token_are_caught(lab: sabotage.Lab, tmp_path: Path) -> None:
    from handlers.openvino import library

    bench = lab.bench(tmp_path / "scratch")
    folder, _ = forms.make("openvino", lab.made("sound", "onnx"), tmp_path / "plain")
    for copy in ("damaged", "cut"):  # since OpenVINO maps the weights of what it has opened
        shutil.copytree(folder, tmp_path / copy)
    real.spoil(tmp_path / "damaged" / "openvino_model.bin")
    assert bench.checked("openvino", tmp_path / "damaged").verdict == "failed"
    ov = library.openvino()
    ir = ov.Core().read_model(folder / "openvino_model.xml")
    state = next(node for node in ir.get_ops() if node.get_type_name() == "Assign")
    kept = state.input_value(0)
    ops = ov.opset13

    def part(start: int, end: int) -> Any:
        return ops.slice(kept, *(ops.constant(np.array([number], np.int64)) for number in (start, end, 1, 2)))

    # Of the same length, since a shorter one is read beyond its end, which is a crash of the process.
    lost = ops.concat([part(0, -1), part(0, 1)], 2)
    state.input(0).replace_source_output(lost.output(0))
    ov.save_model(ir, tmp_path / "cut" / "openvino_model.xml", compress_to_fp16=False)
    assert bench.checked("openvino", tmp_path / "cut").verdict == "failed"
