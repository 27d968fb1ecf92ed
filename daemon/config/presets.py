"""Sets of values that go together, named by the key `preset`: weaker than anything that is written, stronger than the defaults.

`ckptd config preset NAME` prints what one stands for, and `ckptd config show` names it as the origin of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemon.contract.jobs.plan import spec_of, variant_names


@dataclass(frozen=True)
class Preset:
    """What a preset is for, and its values by section. Made when they are asked for, since formats may come by packages."""

    about: str
    make: Callable[[], dict[str, dict[str, Any]]]


def _edge() -> dict[str, dict[str, Any]]:
    return {
        "export": {"variants": ["onnx-int8"]},
        "output": {"kept_size": "1GiB"},
        "limits": {"jobs": 1, "stages": 1},
        "select": {"policy": "latest"},
        "retention": {"keep_last": 3, "keep_best": 1},
    }


def _server_cpu() -> dict[str, dict[str, Any]]:
    return {"export": {"variants": ["pytorch", "onnx", "onnx-int8"]}}


def _server_gpu() -> dict[str, dict[str, Any]]:
    return {"export": {"variants": ["pytorch", "onnx-fp16"]}}


def _everything() -> dict[str, dict[str, Any]]:
    return {"export": {"variants": [name for name in variant_names() if not spec_of(name).toolchain]}}


PRESETS = {
    "edge": Preset("small devices: only int8 ONNX, only of the newest checkpoint, one stage at a time, few exports kept", _edge),
    "server-cpu": Preset("servers without a GPU: the merged model, and ONNX in fp32 and int8", _server_cpu),
    "server-gpu": Preset("servers with a GPU: the merged model, and ONNX in fp16", _server_gpu),
    "everything": Preset("all variants of all installed formats, but those that need a toolchain", _everything),
}


def values_of(name: object) -> dict[str, Any]:
    """The values of a preset; none where there is no such preset, which the key's own type refuses."""
    preset = PRESETS.get(name) if isinstance(name, str) else None
    return preset.make() if preset else {}
