"""JSON of a checkpoint that holds as many values as fit into its bytes costs the process that looks at it a bounded amount of memory."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MOST_GROWTH, MOST_OF_HEADER = 160, 320
"""MiB of memory beside an idle process's."""
LOOK = """
import re, sys
from pathlib import Path
from daemon.checkpoints.inspection import inspect

def most() -> int:  # ru_maxrss would begin with what the test's own process has
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = most()
found = inspect(Path(sys.argv[1]))
print((most() - before) >> 10)
print("; ".join(map(str, found.missing)) if hasattr(found, "missing") else found)
"""
VALUES: dict[str, bytes] = {"lists": b"[],", "objects": b"{},", "numbers": b"1,", "texts": b'"",', "rows": b'{"loss":[],"step":0},'}


def object_of(value: bytes, size: int, key: bytes = b"a") -> bytes:
    """A JSON object of about `size` bytes: one list of that value."""
    return b'{"' + key + b'":[' + value * (size // len(value)) + b"0]}"


def names(size: int, _: bytes = b"") -> bytes:
    """An object of many names."""
    return b"{" + b",".join(b'"%d":1' % number for number in range(size // 10)) + b"}"


def rows(size: int, value: bytes) -> bytes:
    """A training log of rows that are each as dense as they may be."""
    row = b'{"step":1,"loss":1,"more":[' + value * ((1 << 20) // len(value)) + b"0]},"
    return b'{"global_step":4,"log_history":[' + row * max(1, size // len(row)) + b"{}]}"


def header(size: int, _: bytes = b"") -> bytes:
    """A safetensors file whose header has that size."""
    entry = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    text = b"{" + b",".join(entry % number for number in range(size // 60)) + b"}"
    return struct.pack("<Q", len(text)) + text


MADE: dict[str, Callable[[int, bytes], bytes]] = {"one list": lambda size, value: object_of(value, size), "names": names, "rows": rows}
CASES = [
    *(("adapter_config.json", kind, value) for kind in ("one list", "names") for value in (VALUES if kind == "one list" else ["lists"])),
    *(("config.json", "one list", value) for value in ("lists", "objects")),
    *(("trainer_state.json", kind, value) for kind in MADE for value in (VALUES if kind != "names" else ["lists"])),
]


def looked_at(checkpoint: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", LOOK, str(checkpoint)], capture_output=True, text=True, check=True)
    growth, _, words = done.stdout.partition("\n")
    return int(growth), words


@pytest.mark.parametrize("size", [12 << 20, *(pytest.param(size, marks=pytest.mark.slow) for size in (1 << 20, 31 << 20, 130 << 20))])
@pytest.mark.parametrize(
    ("name", "kind", "value"), [case if case[2] == "lists" else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_dense_file_costs_bounded_memory(name: str, kind: str, value: str, size: int, tmp_path: Path, pico_checkpoint: Path) -> None:
    checkpoint = Path(shutil.copytree(pico_checkpoint, tmp_path / "run" / "checkpoint-4"))
    (checkpoint / name).write_bytes(MADE[kind](size, VALUES[value]))
    growth, words = looked_at(checkpoint)
    assert growth < MOST_GROWTH, words


@pytest.mark.parametrize("size", [12 << 20, *(pytest.param(size, marks=pytest.mark.slow) for size in (24 << 20, 31 << 20, 90 << 20))])
def test_a_header_of_any_length_costs_bounded_memory(size: int, tmp_path: Path, pico_checkpoint: Path) -> None:
    checkpoint = Path(shutil.copytree(pico_checkpoint, tmp_path / "run" / "checkpoint-4"))
    (checkpoint / "adapter_model.safetensors").write_bytes(header(size))
    growth, words = looked_at(checkpoint)
    assert growth < MOST_OF_HEADER, words


def test_a_header_of_an_adapter_for_hundreds_of_experts_is_read(tmp_path: Path) -> None:
    from daemon.contract.models.safetensors import parse_header

    entry = b'"base.layers.%d.experts.%d.lora_A.weight":{"dtype":"F32","shape":[8,0],"data_offsets":[0,0]}'
    text = b"{" + b",".join(entry % divmod(number, 512) for number in range(300_000)) + b"}"
    (tmp_path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert len(parse_header(tmp_path / "adapter_model.safetensors")) == 300_000


def test_an_index_of_the_largest_models_is_read(tmp_path: Path) -> None:
    from daemon.checkpoints.completeness import read_json

    table = {
        f"model.layers.{number // 1200}.mlp.experts.{number % 400}.gate_proj.weight_scale_inv.{number}": "model-00001-of-00200.safetensors"
        for number in range(200_000)
    }
    (tmp_path / "index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": table}, indent=2))
    assert len(read_json(tmp_path / "index.json")["weight_map"]) == 200_000
