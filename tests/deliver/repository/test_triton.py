"""Triton's repository: a configuration that is true of the graph, versions that are served when it says so, graphs that run from there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from onnx import TensorProto, helper, numpy_helper

from tests.deliver.contract.bench import Bench
from tests.deliver.exports import Export
from tests.deliver.sites.repository import SITE

DATA_TYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
TYPES = {"FP32": "tensor(float)", "INT64": "tensor(int64)", "FP16": "tensor(float16)"}


class TritonSite(SITE):
    def options(self) -> dict[str, Any]:
        return {**super().options(), "layout": "triton"}


def graph(step: int, outside: bool = True) -> dict[str, bytes]:
    """A graph whose weights depend on the step, with its weights outside of its file, and an input of no dimension."""
    weight = np.full((4, 3), step, dtype=np.float32)
    constant = numpy_helper.from_array(weight, "weight")
    if outside:
        constant.ClearField("raw_data")
        constant.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "model.onnx.data"), ("offset", "0"), ("length", str(weight.nbytes))):
            constant.external_data.append(onnx.StringStringEntryProto(key=key, value=value))
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", 3])]
    nodes = [helper.make_node("Gather", ["weight", "input_ids"], ["rows"]), helper.make_node("Mul", ["rows", "scale"], ["logits"])]
    made = helper.make_graph(nodes, "graph", inputs, outputs, [constant])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return {"onnx/model.onnx": model.SerializeToString(), **({"onnx/model.onnx.data": weight.tobytes()} if outside else {})}


def message_of(text: str) -> Any:
    """A configuration, read by protobuf's own parser of the text format; the fields are those of Triton's model_config.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", syntax="proto3")
    kinds = file.enum_type.add(name="DataType")
    for number, name in enumerate(DATA_TYPES.split()):
        kinds.value.add(name=f"TYPE_{name}", number=number)
    kind = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, bool]) -> None:
        made = file.message_type.add(name=name)
        for place, (field, what, many) in enumerate(fields, 1):
            into = made.field.add(name=field.split(":")[0], number=place, label=kind.LABEL_REPEATED if many else kind.LABEL_OPTIONAL)
            into.type = what  # type: ignore[assignment]
            if ":" in field:
                into.type_name = field.split(":")[1]

    message("Shape", ("shape", kind.TYPE_INT64, True))
    message(
        "Port", ("name", kind.TYPE_STRING, False), ("data_type:DataType", kind.TYPE_ENUM, False), ("dims", kind.TYPE_INT64, True),
        ("reshape:Shape", kind.TYPE_MESSAGE, False),
    )  # fmt: skip
    message("Specific", ("versions", kind.TYPE_INT64, True))
    message("Policy", ("specific:Specific", kind.TYPE_MESSAGE, False))
    message(
        "ModelConfig", ("name", kind.TYPE_STRING, False), ("backend", kind.TYPE_STRING, False), ("max_batch_size", kind.TYPE_INT32, False),
        ("version_policy:Policy", kind.TYPE_MESSAGE, False), ("input:Port", kind.TYPE_MESSAGE, True),
        ("output:Port", kind.TYPE_MESSAGE, True),
        ("instance_group:Policy", kind.TYPE_MESSAGE, True),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return text_format.Parse(text, message_factory.GetMessageClass(pool.FindMessageTypeByName("ModelConfig"))())


class TritonBench(Bench):
    def export(self, step: int = 100, **how: Any) -> Export:
        how.setdefault("files", {"README.md": b"# An export\n", **graph(step)})
        return super().export(step, **how)

    @property
    def models(self) -> Path:
        return self.site.folder / "models"

    def config(self, model: str = "run-a") -> Any:
        return message_of((self.models / model / "config.pbtxt").read_text())

    def served(self) -> list[int]:
        return list(self.config().version_policy.specific.versions)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TritonBench]:
    (folder := tmp_path / "far end").mkdir()
    with TritonSite(folder) as site:
        yield TritonBench(site, tmp_path)


def test_the_configuration_is_true_of_the_graph_that_runs_from_there(bench: TritonBench) -> None:
    receipt = bench.deliver(bench.export()).receipt
    assert receipt.version == "run-a/100" and receipt.moved
    config = bench.config()
    session = onnxruntime.InferenceSession(bench.models / "run-a/100/model.onnx", providers=["CPUExecutionProvider"])
    names = type(config).DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    for said, real in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [port.name for port in said] == [port.name for port in real]
        assert [TYPES[names[port.data_type].name.removeprefix("TYPE_")] for port in said] == [port.type for port in real]
        for port, own in zip(said, real, strict=True):
            dims = list(port.reshape.shape) if port.HasField("reshape") else list(port.dims)
            assert dims == [size if isinstance(size, int) else -1 for size in own.shape]
    assert (config.name, config.backend, config.max_batch_size) == ("run-a", "onnxruntime", 0)
    (logits,) = session.run(None, {"input_ids": np.array([[0, 3]]), "scale": np.array(2, np.float32)})
    assert (logits == 200).all() and logits.shape == (1, 2, 3)


def test_a_version_is_served_when_the_configuration_says_so(bench: TritonBench) -> None:
    bench.deliver(bench.export(100))
    kept = bench.deliver(bench.export(300), move="keep").receipt
    assert not kept.moved and bench.served() == [100] and (bench.models / "run-a/300/model.onnx").is_file()
    older = bench.deliver(bench.export(50)).receipt
    assert not older.moved and "later" in older.why_not_moved and bench.served() == [100]
    assert bench.deliver(bench.export(50), move="force").receipt.moved and bench.served() == [50]
    assert [(row.version, row.current) for row in bench.listed("run-a")] == [("run-a/50", True), ("run-a/100", False), ("run-a/300", False)]


def test_the_first_version_that_is_not_to_be_served_is_not(bench: TritonBench) -> None:
    bench.deliver(bench.export(100), move="keep")
    assert bench.served() == [0]
    assert bench.deliver(bench.export(100)).receipt.moved and bench.served() == [100]


def test_what_people_add_to_the_configuration_stays(bench: TritonBench) -> None:
    bench.deliver(bench.export(100))
    path = bench.models / "run-a/config.pbtxt"
    path.write_text(path.read_text() + "instance_group [ { specific: { versions: [ 7 ] } } ]\n")
    bench.deliver(bench.export(200))
    assert bench.served() == [200] and "instance_group" in path.read_text()


def test_a_graph_with_other_inputs_gets_another_configuration(bench: TritonBench) -> None:
    bench.deliver(bench.export(100))
    files = graph(200, outside=False)
    model = onnx.load_model_from_string(files["onnx/model.onnx"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    bench.deliver(bench.export(200, files={"onnx/model.onnx": model.SerializeToString()}))
    assert bench.served() == [200] and list(bench.config().input[0].dims) == [1, -1]


def test_a_persons_configuration_is_left_alone(bench: TritonBench) -> None:
    (bench.models / "run-a").mkdir()
    (path := bench.models / "run-a/config.pbtxt").write_text('name: "run-a"\nbackend: "python"\n')
    receipt = bench.deliver(bench.export(100)).receipt
    assert not receipt.moved and "not ckptd's" in receipt.why_not_moved and path.read_text().endswith('"python"\n')


def test_a_step_that_was_written_again_does_not_replace_a_version(bench: TritonBench) -> None:
    bench.deliver(bench.export(100))
    end = bench.deliver(bench.export(100, files=graph(101))).end
    assert end.permanent and end.fault and "another version" in end.fault.sentence()
    assert np.frombuffer((bench.models / "run-a/100/model.onnx.data").read_bytes(), np.float32)[0] == 100


@pytest.mark.parametrize(
    ("step", "files", "word"),
    [
        (0, graph(0), "begin with 1"), (1, {"onnx/model.onnx": b"no graph"}, "can't be served"), (1, {"pytorch/a.bin": b"a"}, "has only"),
        (1, {"onnx/encoder.onnx": b"a", "onnx/decoder.onnx": b"b"}, "2 graphs"),
    ],
)  # fmt: skip
def test_what_triton_can_not_serve_is_said(bench: TritonBench, step: int, files: dict[str, bytes], word: str) -> None:
    end = bench.deliver(bench.export(step, files=files)).end
    assert end.permanent and end.fault and word in end.fault.sentence() and not list(bench.models.iterdir())


def test_two_file_systems_are_refused_before_anything_is_copied(bench: TritonBench) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(bench.models).st_dev:
        pytest.skip("there is one file system here")
    site = bench.site
    site.options = lambda: {"folder": str(bench.models), "layout": "triton", "staging": "/dev/shm/of-a-test"}  # type: ignore[method-assign]
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and "another file system" in end.fault.sentence() and not Path("/dev/shm/of-a-test").exists()


def test_a_reader_of_the_repository_never_meets_a_half(bench: TritonBench) -> None:
    """As a server that polls: each version that the configuration names can be loaded."""
    import threading

    ended, problems, seen = threading.Event(), list[BaseException](), set[int]()

    def poll() -> None:
        while not ended.is_set():
            try:
                if (bench.models / "run-a").is_dir():
                    (number,) = bench.served()
                    session = onnxruntime.InferenceSession(bench.models / f"run-a/{number}/model.onnx", providers=["CPUExecutionProvider"])
                    (logits,) = session.run(None, {"input_ids": np.array([[1]]), "scale": np.array(1, np.float32)})
                    assert (logits == number).all()
                    seen.add(number)
            except BaseException as problem:
                problems.append(problem)
                return

    reader = threading.Thread(target=poll)
    reader.start()
    for step in range(1, 5):
        assert bench.deliver(bench.export(step), keep=2).receipt.moved
    ended.set()
    reader.join()
    assert not problems and seen, problems
    assert (
        sorted(os.listdir(bench.models / "run-a")) == ["3", "4", "config.pbtxt"]
        and json.loads((bench.models / "run-a/4/.ckptd.json").read_text())["step"] == 4
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_anywhere_what_is_served_is_whole_and_another_attempt_goes_on(bench: TritonBench, tmp_path: Path) -> None:
    assert bench.deliver(bench.export(1)).receipt.moved
    assert bench.start(bench.export(2), log=tmp_path / "calls").receipt.moved
    for number, step in enumerate(range(3, 3 + len((tmp_path / "calls").read_text().splitlines())), 1):
        export = bench.export(step)
        stopped = bench.start(export, stop_at=number).wait()
        assert stopped.killed, f"it ended before point {number}"
        (served,) = bench.served()
        assert served in (step - 1, step)
        session = onnxruntime.InferenceSession(bench.models / f"run-a/{served}/model.onnx", providers=["CPUExecutionProvider"])
        (logits,) = session.run(None, {"input_ids": np.array([[1]]), "scale": np.array(1, np.float32)})
        assert (logits == served).all()
        assert bench.deliver(export, resume=stopped.notes, keep=2).receipt.moved and bench.served() == [step]
    assert sorted(os.listdir(bench.models / "run-a")) == sorted([str(step - 1), str(step), "config.pbtxt"])
