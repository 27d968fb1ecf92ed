"""onnxruntime sessions as the ONNX stages open them. Free of torch."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A CPU session with at most `threads` threads that logs nothing below errors; RuntimeError when the graph is not valid."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check_form(path: Path) -> None:
    """Check a graph against the standard; ValueError in one line when it breaks it.

    Called while the weights still lie in a file of their own: the checker would read them into memory twice.
    """
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(str(error).strip().splitlines()[0]) from None
