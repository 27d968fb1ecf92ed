"""Engines: built by TensorRT-RTX without a GPU, and by a stand-in of TensorRT on a stand-in of one, where the check runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.graphs import graphset
from handlers.tensorrt.box import build, session
from handlers.validate.engines import registry
from handlers.validate.engines.registry import EngineSpec
from tests.onnx import qwen
from tests.stages import refused
from tests.tensorrt import forms
from tests.torch_programs.forms import MODELS
from tests.validate import sabotage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model's bundle. Read only."""
    folder = tmp_path_factory.mktemp("bundle")
    return forms.make("tensorrt-bundle", forms.onnx(qwen.make(folder / "model"), folder / "onnx"), folder / "work")[0]


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["Qwen3", "Qwen3Moe", "GPT-2", "Bert", "ModernBert", "Marian", "T5"])
def test_tensorrt_rtx_takes_every_kind_of_bundle_and_builds_its_engines_here(name: str, tmp_path: Path) -> None:  # R2.4
    graphs = forms.onnx(MODELS[name](tmp_path / "model"), tmp_path / "onnx")
    source, _ = forms.make("tensorrt-bundle", graphs, tmp_path / "bundle")
    folder, output = forms.make("tensorrt-rtx", source, tmp_path / "work", compute_capabilities=("8.9",))
    known = graphset.read(folder)
    assert [one.file for one in known.graphs] == output.figures["engines"] and all(one.nodes > 10 for one in known.graphs)
    assert all((folder / one.file).stat().st_size > 100_000 for one in known.graphs)
    assert output.figures["compute_capabilities"] == "8.9" and output.figures["library"].startswith("1.7.")
    assert not list(folder.rglob("*.onnx")) and not (folder / "build.py").exists() and (folder / "verify" / "cases.json").is_file()
    assert json.loads((folder / "engines" / "built.json").read_text()) == {
        "library": "tensorrt_rtx", "version": output.figures["library"], "precision": "fp32", "compute_capabilities": ["8.9"]
    }  # fmt: skip


@pytest.mark.usefixtures("libraries")
def test_half_precision_and_other_gpus_too(bundle: Path, tmp_path: Path) -> None:
    graphs = forms.onnx(qwen.make(tmp_path / "model"), tmp_path / "onnx")
    source, _ = forms.make("tensorrt-bundle-fp16", forms.make("onnx-fp16", graphs, tmp_path / "fp16")[0], tmp_path / "bundle")
    _, output = forms.make("tensorrt-rtx-fp16", source, tmp_path / "work", compute_capabilities=("8.0", "12.0"))
    assert output.figures["precision"] == "fp16" and output.figures["compute_capabilities"] == "8.0, 12.0"
    with pytest.raises(Permanent, match="Turing") as refused:  # which has no products in fp32 there
        forms.make("tensorrt-rtx", bundle, tmp_path / "turing", compute_capabilities=("7.5",))
    assert refused.value.fault.code == FaultCode.FORM_NOT_POSSIBLE and "tensorrt_rtx 1.7" in refused.value.fault.cause


@pytest.mark.usefixtures("libraries")
def test_a_graph_or_a_profile_that_the_library_refuses_is_one_sentence(bundle: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(bundle, tmp_path / "broken")
    facts = json.loads((broken / "profiles.json").read_text())
    facts["graphs"][0]["profiles"][1]["inputs"]["input_ids"]["opt"] = [1, 99]
    (broken / "profiles.json").write_text(json.dumps(facts))
    refused("does not take the profile decode", forms.make, "tensorrt-rtx", broken, tmp_path / "first")
    (broken / "model.onnx").write_bytes(b"no graph")
    refused(r"does not take model\.onnx", forms.make, "tensorrt-rtx", broken, tmp_path / "second")
    assert not list((tmp_path / "second" / "staging").rglob("built.json"))


@pytest.mark.usefixtures("libraries")
def test_an_engine_with_other_outputs_than_its_graph_is_refused(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build.build
    monkeypatch.setattr(build, "build", lambda *given: _without_logits(plain(*given)))
    with pytest.raises(Permanent, match="other inputs or outputs") as refused:
        forms.make("tensorrt-rtx", bundle, tmp_path / "work")
    assert refused.value.fault.code == FaultCode.INVALID_GRAPH


def _without_logits(made: build.Made) -> build.Made:
    return build.Made(made.engine, made.inputs, {name: shape for name, shape in made.outputs.items() if name != "logits"}, made.layers)


@pytest.mark.usefixtures("libraries")
def test_without_a_gpu_an_engine_is_not_said_to_be_wrong(bundle: Path, tmp_path: Path) -> None:
    folder, _ = forms.make("tensorrt-rtx", bundle, tmp_path / "work")
    with pytest.raises(Permanent, match="this machine has no NVIDIA driver") as refused:
        registry.load(EngineSpec(engine="tensorrt", folder=str(folder), task="text-generation"))
    assert refused.value.fault.code == FaultCode.DEVICE_MISSING


def test_without_tensorrt_the_variant_says_how_to_get_it(bundle: Path, tmp_path: Path) -> None:
    refused("`pip install tensorrt` installs it", forms.make, "tensorrt", bundle, tmp_path / "work")


def test_without_a_gpu_tensorrt_builds_nothing(bundle: Path, gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_NO_GPU", "1")
    with pytest.raises(Permanent, match="finds no GPU") as refused:
        forms.make("tensorrt", bundle, tmp_path / "work")
    assert refused.value.fault.remedy.startswith("set limits.device to cuda if this machine has a GPU, else leave tensorrt out")
    assert not list((tmp_path / "work" / "staging").rglob("*.engine"))


def test_gpus_that_are_hidden_are_not_said_to_be_missing(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_NO_GPU", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as a stage has it that is to leave the GPUs to the training
    with pytest.raises(session.NoDeviceError, match="CUDA_VISIBLE_DEVICES hides the GPUs"):
        session.gpu()


RTX = (
    "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine cannot run on this GPU, which has compute capability 9.0."
    " Supported compute capabilities: 8.0 8.6 8.9 12.0 12.1 >12.0. TensorRT-RTX does not support this compute capability, so the engine"
    " cannot be rebuilt for it. In throwUnlessComputeCapSupported at /_src/runtime/dispatch/runtime.cpp:84)"
)
"""What TensorRT-RTX 1.7.1 said on an H200."""


@pytest.mark.parametrize("listed", [None, ("SM89",), ("SM89", "SM90")])
def test_an_engine_for_other_gpus_is_unverified_and_not_wrong(
    listed: tuple[str, ...] | None, bundle: Path, gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = forms.make("tensorrt", bundle, tmp_path / "work")
    monkeypatch.setenv("STAND_IN_REFUSES", RTX)
    if listed is not None:
        monkeypatch.setattr(sys.modules["tensorrt"], "ComputeCapability", Enum("ComputeCapability", listed), raising=False)
    with pytest.raises(Permanent) as refused:
        registry.load(EngineSpec(engine="tensorrt", folder=str(folder), task="text-generation"))
    fault = refused.value.fault
    assert fault.code == FaultCode.DEVICE_MISSING and "(compute capability 9.0)" in fault.cause and "12.1 >12.0" in fault.cause
    assert ("this release has none for this one" in fault.cause) == (listed == ("SM89",))


def test_a_shape_beyond_the_profiles_is_refused_and_more_rows_go_in_turns(bundle: Path, gpu: Path, tmp_path: Path) -> None:
    small, _ = forms.make("tensorrt-bundle", bundle.parents[1] / "onnx" / "staging", tmp_path / "small", max_tokens=64)
    folder, output = forms.make("tensorrt", small, tmp_path / "work")
    assert output.figures["device"] == "stand-in GPU"
    opened = session.Session(folder / "engines" / "model.engine")
    feeds = {one.name: np.zeros([size or 1 for size in one.shape]) for one in opened.get_inputs()}
    feeds["attention_mask"] = np.ones((1, 2))
    assert opened.run(["logits"], feeds)[0].shape == (1, 1, 320), "a past of one token is for the second profile"
    with pytest.raises(session.Refused, match=r"No profile of model\.engine takes the shapes input_ids \(1, 99\)"):
        opened.run(None, {**feeds, "input_ids": np.zeros((1, 99)), "position_ids": np.zeros((1, 99))})
    engine = registry.load(EngineSpec(engine="tensorrt", folder=str(folder), task="text-generation"))
    assert engine.context_length == 64
    ids = np.arange(2, 72).reshape(7, 10)  # three rows more than the engine takes at once
    given = (ids, np.ones_like(ids), np.tile(np.arange(10), (7, 1)), None)
    together, cache = engine.step(*given)
    wanted, _ = qwen.onnx_engine(bundle).step(*given)
    assert np.abs(together - wanted).max() < 1e-5 and len(next(iter(cache.values())).array) == 7


def test_memory_on_the_gpu_is_used_again(bundle: Path, gpu: Path, tmp_path: Path) -> None:
    import ctypes

    folder, _ = forms.make("tensorrt", bundle, tmp_path / "work")
    engine = registry.load(EngineSpec(engine="tensorrt", folder=str(folder), task="text-generation"))
    blocks = ctypes.CDLL(session.DRIVER).stand_in_blocks
    cache, before = None, 0
    for length in range(1, 20):
        ids = np.full((1, 1), 5)
        _, cache = engine.step(ids, np.ones((1, length), np.int64), np.full((1, 1), length - 1), cache)
        before = before or blocks()
    assert blocks() == before, "a tensor that grows gets a new block for its old one"


@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(
    source: str, lab: sabotage.Lab, gpu: Path, tmp_path: Path
) -> None:  # R4.5
    bench, model = lab.bench(tmp_path / "scratch"), lab.made(source, "pytorch")
    plain, _ = forms.make("tensorrt-bundle", lab.made(source, "onnx"), tmp_path / "plain")
    half, _ = forms.make("tensorrt-bundle-fp16", lab.made(source, "onnx-fp16"), tmp_path / "half")
    engines, _ = forms.make("tensorrt", plain, tmp_path / "engines")
    checkpoint, _ = forms.make("tensorrt-llm", model, tmp_path / "llm")
    made = {"tensorrt-bundle": plain, "tensorrt-bundle-fp16": half, "tensorrt": engines, "tensorrt-llm": checkpoint}
    for folder in made.values():
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(lab.base / name, folder / name)
    verdicts = {name: bench.check(name, folder) for name, folder in made.items()}
    wanted = "passed" if source == "sound" else "failed"
    assert {name: str(one.verdict) for name, one in verdicts.items()} == dict.fromkeys(made, wanted), [
        one.reasons for one in verdicts.values()
    ]


@pytest.mark.parametrize("what", ["a cache that loses a token", "no mask", "noise on the GPU"])
def test_a_wrong_graph_or_a_wrong_gpu_is_caught(
    what: str, lab: sabotage.Lab, gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R4.5
    bench = lab.bench(tmp_path / "scratch")
    graphs = shutil.copytree(lab.made("sound", "onnx"), tmp_path / "graphs")
    if what == "noise on the GPU":
        folder, _ = forms.make("tensorrt", forms.make("tensorrt-bundle", graphs, tmp_path / "bundle")[0], tmp_path / "work")
        monkeypatch.setenv("STAND_IN_NOISE", "3")  # on the caches too, which no other figure shows
        assert bench.check("tensorrt", folder).verdict == "failed"
        return
    damage = sabotage._lose_a_token if what == "a cache that loses a token" else sabotage._ignore_the_mask
    damage(graphs)
    with pytest.raises(Permanent, match="a cache or a batch changes what the graphs say") as refused:
        forms.make("tensorrt-bundle", graphs, tmp_path / "bundle")
    assert refused.value.fault.code == FaultCode.INVALID_GRAPH


def test_an_engine_that_is_cut_short_is_said_to_be_unreadable(bundle: Path, gpu: Path, tmp_path: Path) -> None:
    folder, _ = forms.make("tensorrt", bundle, tmp_path / "work")
    path = folder / "engines" / "model.engine"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Permanent, match="the engine can't be read"):
        registry.load(EngineSpec(engine="tensorrt", folder=str(folder), task="text-generation"))


def test_a_folder_of_engines_is_verified_as_its_bundle_is(bundle: Path, gpu: Path, driver: Path, tmp_path: Path) -> None:
    folder, _ = forms.make("tensorrt", bundle, tmp_path / "work")
    done = forms.on_gpu(folder, driver, "verify.py")
    assert done.returncode == 0, done.stderr
    done = forms.on_gpu(folder, driver, "verify.py", "--precision", "bf16")
    assert done.returncode == 2 and "the graphs to build it of are not here" in done.stderr
    (folder / "engines" / "model.engine").unlink()
    done = forms.on_gpu(folder, driver, "verify.py")
    assert done.returncode == 2 and "engines/model.engine is missing" in done.stderr


@pytest.mark.usefixtures("state")
def test_the_builder_of_a_bundle_runs_in_the_toolchain_alone(bundle: Path, toolchain: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    command = [str(toolchain / "bin" / "python"), "-I", "-B", str(folder / "build.py"), "--compute-capabilities", "8.6", "8.9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "engines" / "model.engine").stat().st_size > 100_000
    code, verdict = forms.verified(folder, backend="", python=toolchain / "bin" / "python")
    assert code == 2 and "no NVIDIA driver" in verdict["reason"]
