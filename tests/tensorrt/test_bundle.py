"""Bundles of every kind: what is in them runs, is verified by their own verify.py, and goes through a stand-in of TensorRT as on a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.graphs import graphset
from handlers.tensorrt import engine
from handlers.validate.engines.registry import EngineSpec
from tests import models
from tests.onnx import qwen
from tests.onnx.layers import deep_models
from tests.stages import refused
from tests.tensorrt import forms
from tests.torch_programs.forms import MODELS

pytestmark = pytest.mark.slow
DECODERS = ("Qwen3", "Qwen3Moe", "GPT-2")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The ONNX folder of a model by its name, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("graphs")
            made[name] = forms.onnx(MODELS[name](folder / "model"), folder / "onnx")
        return made[name]

    return of


@pytest.fixture(scope="module")
def qwen3(graphs: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model's bundle. Read only."""
    return forms.make("tensorrt-bundle", graphs("Qwen3"), tmp_path_factory.mktemp("bundle"))[0]


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3Moe", "GPT-2", "Bert", "Bert QA", "ModernBert", "Marian", "T5"])
def test_a_bundle_of_every_kind_is_verified_by_what_it_brings(
    name: str, graphs: Callable[[str], Path], driver: Path, tmp_path: Path
) -> None:  # R2.4
    folder, output = forms.make("tensorrt-bundle", graphs(name), tmp_path / "work")
    assert output.figures["verify_error"] < 1e-4 and output.figures["profile_runs"] > 1
    known = json.loads((folder / "profiles.json").read_text())
    assert [one["role"] for one in known["graphs"]] == [one.role for one in graphset.read(folder).graphs]
    assert "decoder_merged" not in output.figures["graphs"]
    profiles = {one["name"] for graph in known["graphs"] for one in graph["profiles"]}
    assert (profiles == {"prefill", "decode"}) == (name in DECODERS)
    code, verdict = forms.verified(folder)
    assert (code, verdict["verdict"]) == (0, "passed") and verdict["error"] < 1e-4
    done = forms.on_gpu(folder, driver, "verify.py")  # builds the engines first, and takes no size that they were not built for
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["backend"] == "tensorrt" and verdict["device"] == "stand-in GPU" and verdict["precision"] == "fp32"
    assert {one.name for one in (folder / "engines").glob("*.engine")} == set(output.figures["engines"])
    assert not [one for one in folder.rglob("*") if one.name == "__pycache__"]


@pytest.mark.parametrize("name", ["Qwen3", "Bert", "Marian"])
def test_the_half_precision_bundle_too(name: str, graphs: Callable[[str], Path], driver: Path, tmp_path: Path) -> None:
    halves, _ = forms.make("onnx-fp16", graphs(name), tmp_path / "fp16")
    folder, output = forms.make("tensorrt-bundle-fp16", halves, tmp_path / "work")
    assert output.figures["dtype"] == "float16" and forms.verified(folder)[0] == 0
    done = forms.on_gpu(folder, driver, "verify.py")
    assert done.returncode == 0 and json.loads(done.stdout)["precision"] == "fp16", done.stderr
    said = json.loads(next((folder / "engines").glob("*.engine")).read_text())
    assert said["typed"] and said["flags"] == ["TF32"]
    done = forms.on_gpu(folder, driver, "build.py", "--precision", "bf16")
    assert done.returncode == 2 and "are in float16 already" in done.stderr


def test_precision_is_asked_for_as_the_release_takes_it(qwen3: Path, driver: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3, tmp_path / "bundle")
    done = forms.on_gpu(folder, driver, "build.py", STAND_IN_VERSION="10.9")
    assert done.returncode == 0, done.stderr
    said = json.loads((folder / "engines" / "model.engine").read_text())
    assert said["typed"] and said["flags"] == [], "fp32 means fp32: TF32 is off"
    assert said["profiles"][0]["past_key_values.0.key"][0] == [1, 2, 0, 16]
    assert (folder / "engines" / "timing.cache").read_bytes() == b"measured;"
    assert forms.on_gpu(folder, driver, "build.py", "--precision", "bf16", STAND_IN_VERSION="10.9").returncode == 0
    said = json.loads((folder / "engines" / "model.engine").read_text())
    assert not said["typed"] and said["flags"] == ["BF16", "TF32"]
    assert (folder / "engines" / "timing.cache").read_bytes() == b"measured;measured;"
    done = forms.on_gpu(folder, driver, "build.py", "--precision", "fp16", STAND_IN_VERSION="11.4")
    assert done.returncode == 2 and "takes a graph's types as they are" in done.stderr and len(done.stderr.splitlines()) == 2
    assert not (folder / "engines" / "built.json").exists(), "what is left does not belong together any more"
    done = forms.on_gpu(folder, driver, "build.py", "--compute-capabilities", "8.9")
    assert done.returncode == 2 and "builds for the GPU that it runs on" in done.stderr


def test_engines_that_say_something_else_fail_and_a_machine_without_a_gpu_is_said(qwen3: Path, driver: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3, tmp_path / "bundle")
    done = forms.on_gpu(folder, driver, "verify.py", "--json", str(tmp_path / "verdict.json"), STAND_IN_NOISE="0.5")
    verdict = json.loads(done.stdout)
    assert done.returncode == 1 and verdict["verdict"] == "failed" and "the limit is 0.01" in verdict["reason"]
    assert json.loads((tmp_path / "verdict.json").read_text()) == verdict
    assert forms.on_gpu(folder, driver, "verify.py", "--limit", "9", STAND_IN_NOISE="0.5").returncode == 0
    done = forms.on_gpu(folder, driver, "verify.py", STAND_IN_NO_GPU="1")
    assert done.returncode == 2 and json.loads(done.stdout)["reason"] == "NVIDIA's driver finds no GPU on this machine."
    code, verdict = forms.verified(folder, backend="")
    assert code == 2 and verdict["verdict"] == "not run" and "is not installed in this Python" in verdict["reason"]


@pytest.mark.parametrize("name", ["Qwen3", "T5"])
def test_the_example_runs_the_engines_where_there_are_some_and_the_graphs_before(name: str, driver: Path, tmp_path: Path) -> None:
    from tests.onnx import seq2seq

    reader = models.make_base(tmp_path / "reader", dtype="float32")
    model = reader if name == "Qwen3" else seq2seq.make(tmp_path / "model", "t5", vocab_size=320)
    graphs = forms.onnx(model, tmp_path / "onnx")
    shutil.copyfile(reader / "tokenizer.json", graphs / "tokenizer.json")
    folder, _ = forms.make("tensorrt-bundle", graphs, tmp_path / "work")
    words = ("ab c", "--tokens", "6", "--json") if "--json" in (folder / "example.py").read_text() else ("ab c", "--tokens", "6")
    plain = subprocess.run([sys.executable, "-I", str(folder / "example.py"), *words], capture_output=True, text=True, check=False)
    assert plain.returncode == 0, plain.stderr
    assert "onnxruntime runs" in plain.stderr
    assert forms.on_gpu(folder, driver, "build.py").returncode == 0
    done = forms.on_gpu(folder, driver, "example.py", *words)
    assert done.returncode == 0 and done.stdout == plain.stdout and "onnxruntime runs" not in done.stderr, done.stderr


def damage_weight(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    weight = next(one for one in model.graph.initializer if len(one.dims) == 2 and min(one.dims) > 16)
    array = numpy_helper.to_array(weight).copy()
    array[:8] += array.std() * np.random.default_rng(0).normal(size=array[:8].shape).astype(array.dtype) * 4
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, folder / "model.onnx")


def edit_example(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    path = folder / "verify" / "example-1.npz"
    arrays = dict(np.load(path))
    change(arrays)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def stale(arrays: dict[str, np.ndarray]) -> None:
    """What an earlier checkpoint said in the last step."""
    name = max(key for key in arrays if ":want:logits" in key)
    arrays[name] = arrays[name] + np.random.default_rng(0).normal(size=arrays[name].shape).astype(np.float32) * arrays[name].std() * 0.01


def cut(arrays: dict[str, np.ndarray]) -> None:
    name = next(key for key in arrays if ":want:logits" in key)
    arrays[name] = arrays[name][:, :-1]


def not_finite(arrays: dict[str, np.ndarray]) -> None:
    next(value for key, value in arrays.items() if ":want:logits" in key)[0, 0] = np.nan


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a damaged weight": damage_weight, "a stale expected output": lambda folder: edit_example(folder, stale),
    "another shape": lambda folder: edit_example(folder, cut),
    "values that are not finite": lambda folder: edit_example(folder, not_finite),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_verify_finds_it_and_the_check_does_not_load_such_a_bundle(what: str, qwen3: Path, tmp_path: Path) -> None:  # R4.5
    folder = shutil.copytree(qwen3, tmp_path / "bundle")
    spec = EngineSpec(engine="tensorrt-bundle", folder=str(folder), threads=1)
    engine.BundleCausal(spec)
    DAMAGE[what](folder)
    code, verdict = forms.verified(folder)
    assert (code, verdict["verdict"]) == (1, "failed"), verdict["reason"]
    assert (verdict["error"] is None) == (what in ("another shape", "values that are not finite")), "a number that JSON has"
    with pytest.raises(Permanent, match=r"its verify\.py says failed") as refused:
        engine.BundleCausal(spec)
    assert refused.value.fault.code == FaultCode.ENGINE


def test_a_bundle_whose_verify_is_broken_is_not_taken(qwen3: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3, tmp_path / "bundle")
    (folder / "verify.py").write_text("raise RuntimeError('cut short')\n")
    with pytest.raises(Permanent, match=r"its verify\.py does not run: RuntimeError: cut short"):
        engine.verify(folder, 1)
    (folder / "verify.py").unlink()
    with pytest.raises(Permanent, match=r"does not run: .*No such file"):
        engine.verify(folder, 1)


@pytest.mark.parametrize(
    ("options", "profiles"),
    [
        ({"cache": False}, {"whole texts"}),
        ({"layers_per_graph": 1}, {"prefill", "decode"}),
        ({"external_data": "always"}, {"prefill", "decode"}),
    ],
)  # fmt: skip
def test_other_forms_of_a_decoder_are_bundled_too(options: dict[str, Any], profiles: set[str], driver: Path, tmp_path: Path) -> None:
    graphs = forms.onnx(qwen.make(tmp_path / "model"), tmp_path / "onnx", **options)
    folder, _ = forms.make("tensorrt-bundle", graphs, tmp_path / "work", max_batch=1 if "cache" in options else 4)
    known = json.loads((folder / "profiles.json").read_text())
    assert {one["name"] for graph in known["graphs"] for one in graph["profiles"]} == profiles
    done = forms.on_gpu(folder, driver, "verify.py")
    assert done.returncode == 0, done.stderr
    engine.BundleCausal(EngineSpec(engine="tensorrt-bundle", folder=str(folder), threads=1))


def test_graphs_that_the_parser_would_not_take_are_refused_in_one_sentence(tmp_path: Path) -> None:
    model = qwen.make(tmp_path / "model")
    fault = refused(
        r"model\.onnx is of opset 23 and uses RMSNormalization",
        forms.make,
        "tensorrt-bundle",
        forms.onnx(model, tmp_path / "newest", 23),
        tmp_path / "first",
    )
    assert "set export.opset to 20" in fault.remedy
    folder, output = forms.make("tensorrt-bundle", tmp_path / "newest" / "staging", tmp_path / "second", newest_opset=23)
    assert output.figures["opset"] == 23 and not [one for one in output.fallbacks if "opset" in one.wanted] and folder.is_dir()
    refused(
        "operators of a runtime's own",
        forms.make,
        "tensorrt-bundle",
        forms.onnx(model, tmp_path / "bound", optimize="all"),
        tmp_path / "third",
    )


def test_attention_in_the_standards_operator_is_spelt_out_for_an_older_operator_set(tmp_path: Path) -> None:
    source = deep_models.make(tmp_path / "model", "GPT-2", n_layer=2)
    graphs = forms.onnx(source, tmp_path / "onnx", 23, optimize="basic", attention="operator")
    kinds = {name: [node.op_type for node in onnx.load(graphs / name).graph.node] for name in ("model.onnx",)}
    assert kinds["model.onnx"].count("Attention") == 2
    folder, output = forms.make("tensorrt-bundle", graphs, tmp_path / "work")
    assert output.figures["opset"] == 20 and "Attention" not in {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    folder, _ = forms.make("tensorrt-bundle", graphs, tmp_path / "newest", newest_opset=23)
    assert "Attention" in {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}


def test_a_newer_operator_set_is_lowered_with_a_fallback_and_the_outputs_stay(tmp_path: Path) -> None:
    graphs = forms.onnx(qwen.make(tmp_path / "model"), tmp_path / "onnx", 22)
    folder, output = forms.make("tensorrt-bundle", graphs, tmp_path / "work")
    assert output.figures["opset"] == graphset.read(folder).opset == 20
    assert [(one.wanted, one.taken) for one in output.fallbacks][:1] == [("opset 22", "opset 20")]
    assert onnx.load(folder / "model.onnx").opset_import[0].version == 20
    assert qwen.difference(qwen.torch_model(tmp_path / "model"), qwen.onnx_engine(folder), qwen.BATCHES[2]) < 2e-4


def test_sizes_that_a_graph_does_not_take_are_found_before_anything_is_published(graphs: Callable[[str], Path], tmp_path: Path) -> None:
    wrong = shutil.copytree(graphs("GPT-2"), tmp_path / "onnx")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "n_positions": 4096}))  # the table has 128
    refused("at the max sizes of its profile", forms.make, "tensorrt-bundle", wrong, tmp_path / "work", max_tokens=512)
