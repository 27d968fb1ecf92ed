"""Probe of the toolchain `optimum`: its libraries import together, and ONNX Runtime computes. Runs inside."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from handlers.toolchains import inside


@dataclass(frozen=True)
class Probed:
    """What was tried."""

    versions: dict[str, str]
    """Versions of the libraries that must fit each other."""


def probe(options: argparse.Namespace) -> Probed:
    """Add two numbers in a graph. Raises whatever is wrong."""
    import numpy as np
    import onnx
    import onnxruntime
    import optimum.exporters.onnx.convert
    import optimum.onnxruntime  # noqa: F401
    import torch
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("a", TensorProto.FLOAT, [1])
    total = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Add", ["a", "a"], ["b"])], "probe", [value], [total])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer = session.run(None, {"a": np.array([1.5], np.float32)})[0]
    if float(answer[0]) != float(torch.tensor(1.5) * 2):
        raise RuntimeError(f"ONNX Runtime says that 1.5 + 1.5 is {answer[0]}")
    return Probed(inside.versions(("optimum-onnx", "transformers", "torch", "onnx", "onnxruntime")))


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
