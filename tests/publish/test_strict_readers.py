"""Each format's own strict reader takes a published export, as it lies and after it was copied with the usual tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.external_data_helper import ExternalDataInfo
from safetensors import safe_open
from safetensors.numpy import save_file

from daemon.contract.disk.placing import place
from daemon.publishing.kept import OutputCache
from tests.publish.test_one_link import KEY, Job, several_links

WEIGHTS = np.arange(4096, dtype=np.float32).reshape(64, 64)


def write_onnx(folder: Path) -> None:
    """A graph with its weights in a file beside it, as large models are exported."""
    weights = onnx.numpy_helper.from_array(WEIGHTS, "weights")
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 64]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "weights"], ["y"])], "graph", ports[:1], ports[1:], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)


def read_onnx(folder: Path) -> None:
    """With onnx itself, its checker by path, and onnxruntime."""
    lying = onnx.load(folder / "model.onnx", load_external_data=False)
    assert ExternalDataInfo(lying.graph.initializer[0]).location == "model.onnx.data"
    (loaded,) = onnx.load(folder / "model.onnx").graph.initializer
    assert (onnx.numpy_helper.to_array(loaded) == WEIGHTS).all()
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (said,) = session.run(None, {"x": np.eye(64, dtype=np.float32)})
    assert (said == WEIGHTS).all()


def read_all(export: Path) -> None:
    read_onnx(export / "onnx")
    with safe_open(export / "pytorch" / "model.safetensors", "np") as opened:
        assert (opened.get_tensor("weights") == WEIGHTS).all()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose real model files were published."""

    def fill(job: Job) -> None:
        for path in job.onnx.iterdir():
            path.unlink()
        write_onnx(job.onnx)
        for folder in (job.pin, job.merge, job.pytorch):
            (folder / "model.safetensors").unlink()
        save_file({"weights": WEIGHTS}, job.merge / "model.safetensors")
        place(job.merge / "model.safetensors", job.pytorch / "model.safetensors")

    job = Job(tmp_path).make(fill=fill)
    job.publish()
    return job


def with_cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)


def with_rsync(source: Path, target: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("this box has no rsync")
    subprocess.run(["rsync", "-aH", f"{source}/", f"{target}/"], check=True)


def with_tar(source: Path, target: Path) -> None:
    target.mkdir()
    subprocess.run(["tar", "-cf", f"{target}.tar", "-C", str(source), "."], check=True)
    subprocess.run(["tar", "-xf", f"{target}.tar", "-C", str(target)], check=True)


def test_a_published_export_is_read_as_it_lies(job: Job) -> None:
    read_all(job.target)


@pytest.mark.parametrize("copy", [with_cp, with_rsync, with_tar])
def test_a_copy_of_a_published_export_is_read(job: Job, tmp_path: Path, copy: Callable[[Path, Path], None]) -> None:
    """`rsync -H` and `tar` would carry hard links over."""
    copied = tmp_path / "copied"
    copy(job.target, copied)
    assert several_links(copied) == []
    read_all(copied)


def test_an_output_that_is_kept_for_later_jobs_is_read_where_it_refers_to_the_export(job: Job) -> None:
    found = OutputCache(job.kept).find(KEY)
    assert found is not None
    read_onnx(found[0])
    read_onnx(job.onnx)
