"""Weights of an earlier step."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged

EXHIBIT = Exhibit(
    bug="vllm-project/vllm#32718",
    name="weights of an earlier step",
    happened="After a reload the weights were those that were cached before, and not those on the disk.",
    mutant="the artifact is made of the checkpoint of an earlier step",
    hall="chat",
    variant="onnx-int8",
    make=damaged(source="stale"),
    check="finding: weights",
    words=r"were rounded from others",
)
