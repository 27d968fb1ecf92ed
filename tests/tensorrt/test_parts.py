"""What needs no model: operator sets, sizes, options, build.sh beside a stand-in for trtexec, and a check without the device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Verdict
from handlers.graphs.graphset import Graph, GraphSet, Port
from handlers.tensorrt.bundle import build_script, opset, profiles
from handlers.tensorrt.options import TensorRtOptions
from handlers.validate import findings
from handlers.validate.verdict import unrunnable
from handlers.validate.workers.client import WorkerFailed

TRTEXEC = Path(__file__).parent / "stand_in" / "trtexec"
CACHE = [Port(name=f"past_key_values.0.{kind}", dtype="float32", shape=("batch", 2, "past", 16)) for kind in ("key", "value")]
DECODER = Graph(
    role="model", file="model.onnx",
    inputs=(
        Port(name="input_ids", dtype="int64", shape=("batch", "sequence")),
        Port(name="attention_mask", dtype="int64", shape=("batch", "total")),
        Port(name="position_ids", dtype="int64", shape=("batch", "sequence")), *CACHE,
    ),
)  # fmt: skip
KNOWN = GraphSet(task="text-generation", family="causal", dtype="float32", opset=18, graphs=(DECODER,))


def graph(version: int, *nodes: onnx.NodeProto, domain: str = "") -> onnx.ModelProto:
    value = helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])
    made = helper.make_graph(list(nodes), "g", [value], [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])])
    imports = [helper.make_opsetid("", version), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(made, opset_imports=imports)


def test_an_operator_set_is_lowered_where_every_operator_meant_the_same(tmp_path: Path) -> None:
    model = graph(22, helper.make_node("Cos", ["a"], ["c"]), helper.make_node("Cast", ["c"], ["b"], to=TensorProto.FLOAT))
    assert opset.lowered(model, 20, "model.onnx") == 22 and model.opset_import[0].version == 20
    onnx.save(model, str(tmp_path / "model.onnx"))
    opset.checked(tmp_path / "model.onnx")
    assert opset.lowered(model, 20, "model.onnx") is None


@pytest.mark.parametrize("operator", ["RMSNormalization", "Swish", "Attention"])
def test_an_operator_that_the_older_set_does_not_have_is_named_and_so_is_the_remedy(operator: str) -> None:
    with pytest.raises(opset.NotTaken, match=operator) as refused:
        opset.lowered(graph(24, helper.make_node(operator, ["a"], ["b"])), 20, "model.onnx")
    assert "set export.opset to 20 or lower" in refused.value.remedy


def test_an_operator_that_means_something_else_or_lies_in_a_branch_is_not_lowered() -> None:
    changed = graph(21, helper.make_node("GroupNormalization", ["a", "s", "t"], ["b"], num_groups=1))
    with pytest.raises(opset.NotTaken, match="GroupNormalization"):
        opset.lowered(changed, 20, "model.onnx")
    branch = helper.make_graph([helper.make_node("Swish", ["a"], ["x"])], "branch", [], [])
    nested = graph(24, helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch))
    with pytest.raises(opset.NotTaken, match="Swish"):
        opset.lowered(nested, 20, "model.onnx")


def test_what_was_lowered_wrongly_does_not_pass_the_check_of_types(tmp_path: Path) -> None:
    model = graph(20, helper.make_node("Cos", ["a"], ["b"]))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16  # which cos takes from opset 22 on
    onnx.save(model, str(tmp_path / "model.onnx"))
    with pytest.raises(opset.NotTaken, match="no valid graph"):
        opset.checked(tmp_path / "model.onnx")


def test_operators_of_a_runtimes_own_are_named() -> None:
    model = graph(18, helper.make_node("FusedMatMul", ["a", "a"], ["b"], domain="com.microsoft"), domain="com.microsoft")
    with pytest.raises(opset.NotTaken, match=r"com\.microsoft:FusedMatMul") as refused:
        opset.check(model, "model.onnx")
    assert "onnx.optimize" in refused.value.remedy


@pytest.mark.parametrize(("most", "usual", "longest"), [(2048, 128, 4096), (2048, 128, 64), (8, 128, None), (2048, 4096, None)])
def test_the_mask_is_as_long_as_cache_and_new_tokens_and_never_longer_than_the_model_addresses(
    most: int, usual: int, longest: int | None
) -> None:
    options = TensorRtOptions(max_tokens=most, optimal_tokens=usual)
    made = profiles.made_for(DECODER, options, longest)
    assert [one.name for one in made] == ["prefill", "decode"]
    for one in made:
        for point in range(3):
            sizes = {name: size[point] for name, size in one.sizes.items()}
            assert sizes["total"] == sizes["past"] + sizes["sequence"] <= min(most, longest or most)
        assert all(least <= optimal <= largest for least, optimal, largest in one.sizes.values())
    prefill, decode = made
    assert prefill.sizes["past"] == (0, 0, 0) and decode.sizes["past"][0] == 1
    assert max(one.sizes["total"][2] for one in made) == min(most, longest or most)
    told = prefill.facts(DECODER)["inputs"]["past_key_values.0.key"]
    assert told["min"] == [1, 2, 0, 16] and told["max"] == [4, 2, 0, 16]


def test_a_size_that_nobody_knows_is_refused_by_its_name() -> None:
    strange = DECODER.model_copy(update={"inputs": (Port(name="images", dtype="float32", shape=("batch", "pixels")),)})
    with pytest.raises(profiles.NoProfile, match="'pixels'"):
        profiles.made_for(strange, TensorRtOptions(), None)


@pytest.mark.parametrize("given", [8.9, [8.9], ["8.9"], ("8.9",)])
def test_compute_capabilities_are_read_as_they_are_written(given: Any) -> None:
    assert TensorRtOptions.model_validate({"compute_capabilities": given}).compute_capabilities == ("8.9",)


@pytest.mark.parametrize("given", ["sm_89", ["9.0"], [True]])
def test_a_compute_capability_that_does_not_exist_is_refused_with_those_that_do(given: Any) -> None:
    with pytest.raises(ValidationError, match=r"'12\.0'|tuple"):
        TensorRtOptions.model_validate({"compute_capabilities": given})


def test_an_artifact_whose_device_is_missing_is_unverified_unless_its_weights_are_wrong() -> None:  # R4.1
    lost = WorkerFailed("there is no GPU", "use another machine", code=FaultCode.DEVICE_MISSING)
    check = unrunnable("tensorrt-rtx", lost)
    assert check.verdict is Verdict.UNVERIFIED and check.reasons == ("it could not be run here: there is no GPU",)
    assert unrunnable("tensorrt-rtx", lost, [findings.weights("they are another's", "tensorrt-rtx")]).verdict is Verdict.FAILED
    assert unrunnable("tensorrt-rtx", WorkerFailed("it crashed", "", code=FaultCode.ENGINE)).verdict is Verdict.FAILED


def bundle(folder: Path, dtype: str = "float32") -> Path:
    """A folder with a build.sh for a decoder whose graph is not there: the stand-in does not read it."""
    known = KNOWN.model_copy(update={"dtype": dtype})
    options = TensorRtOptions(max_tokens=64, optimal_tokens=16)
    facts = profiles.written(known, {"model": profiles.made_for(DECODER, options, None)}, options)
    (folder / build_script.NAME).write_text(build_script.script(facts))
    return folder


def build(folder: Path, *words: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What build.sh says, and the words that the stand-in was called with."""
    calls = folder / "calls"
    environment = {**os.environ, "TRTEXEC": str(TRTEXEC), "STAND_IN_CALLS": str(calls), **variables}
    done = subprocess.run(["bash", str(folder / "build.sh"), *words], capture_output=True, text=True, env=environment, cwd="/", check=False)
    return done, calls.read_text().splitlines() if calls.is_file() else []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_script_is_clean_for_shellcheck(dtype: str, tmp_path: Path) -> None:
    try:
        done = subprocess.run(["shellcheck", str(bundle(tmp_path, dtype) / "build.sh")], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("shellcheck is not installed")
    assert done.returncode == 0, done.stdout


def test_the_script_gives_trtexec_every_size_of_both_profiles(tmp_path: Path) -> None:
    done, words = build(bundle(tmp_path))
    assert done.returncode == 0, done.stderr
    assert words[:5] == [
        "--onnx=model.onnx", "--saveEngine=engines/model.engine.part", "--noTF32", "--skipInference",
        "--timingCacheFile=engines/timing.cache",
    ]  # fmt: skip
    assert [word for word in words if word.startswith("--profile=")] == ["--profile=0", "--profile=1"]
    first, second = words.index("--profile=0"), words.index("--profile=1")
    assert words[first + 1] == (
        "--minShapes=input_ids:1x1,attention_mask:1x1,position_ids:1x1,past_key_values.0.key:1x2x0x16,past_key_values.0.value:1x2x0x16"
    )
    assert words[second + 3] == (
        "--maxShapes=input_ids:4x16,attention_mask:4x64,position_ids:4x16,past_key_values.0.key:4x2x48x16,past_key_values.0.value:4x2x48x16"
    )
    assert (tmp_path / "engines" / "model.engine").read_text() == "engine" and not list(tmp_path.rglob("*.part"))
    assert '"precision": "fp32"' in (tmp_path / "engines" / "built.json").read_text()


def test_precision_is_a_flag_where_trtexec_has_one_and_a_sentence_where_it_has_none(tmp_path: Path) -> None:
    done, words = build(bundle(tmp_path), "bf16")
    assert done.returncode == 0 and "--bf16" in words and "--noTF32" not in words
    (tmp_path / "calls").unlink()
    done, words = build(tmp_path, "fp16", STAND_IN_FLAGS="--noTF32 --skipInference")
    assert done.returncode == 2 and not words and "use the folder tensorrt-bundle-fp16 instead" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    _, words = build(bundle(tmp_path, "float16"))
    assert "--stronglyTyped" in words and "--fp16" not in words


@pytest.mark.parametrize(
    ("words", "variables", "code", "says"),
    [
        ((), {"TRTEXEC": "/nowhere/trtexec"}, 2, "/nowhere/trtexec is not found: install TensorRT"),
        (("int8",), {}, 2, "the precision can't be int8; it is one of: fp32 tf32 fp16 bf16."),
        (
            (),
            {"STAND_IN_ERROR": "ModelImporter: no such operator"},
            1,
            "trtexec can't build model.onnx: [E] ModelImporter: no such operator",
        ),
    ],
)
def test_what_can_not_be_built_is_one_sentence(
    words: tuple[str, ...], variables: dict[str, str], code: int, says: str, tmp_path: Path
) -> None:
    done, _ = build(bundle(tmp_path), *words, **variables)
    assert done.returncode == code and len(done.stderr.splitlines()) == 1 and says in done.stderr
    assert not (tmp_path / "engines" / "built.json").exists() and not list(tmp_path.rglob("*.engine"))


def test_engines_that_are_half_built_again_are_not_said_to_belong_together(tmp_path: Path) -> None:
    build(bundle(tmp_path))
    assert (tmp_path / "engines" / "built.json").is_file()
    assert build(tmp_path, "fp16", STAND_IN_ERROR="out of memory")[0].returncode == 1
    assert not (tmp_path / "engines" / "built.json").exists()
