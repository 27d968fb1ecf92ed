"""`ckptd bench`: an export that was published is measured, and nothing of it changes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.system.box import memory
from daemon.system.processes.procfs import exact_memory
from tests.bench.conftest import QUICK
from tests.bench.publishing import publish
from tests.sampling import some
from tests.service import listing, stray_handlers

Start = Callable[..., subprocess.Popen[str]]
Folders = dict[str, Path]
LONG = ("--lengths", "4", "--tokens", "64", "--rounds", "1000", "--minutes", "20")
"""Options of a measurement that would take minutes."""


def answer(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    """Exit code, JSON of stdout, stderr."""
    out, said = process.communicate(timeout=200)
    assert "Traceback" not in said, said
    return process.returncode, json.loads(out) if out else None, said


def left_over(folder: Path) -> list[str]:
    """What a measurement left in the state directory."""
    return [name for name in listing(folder / "xdg") if "bench-" in name]


def by_name(value: Any) -> dict[str, Any]:
    return {one["variant"]: one for one in value["variants"]}


def wait_for_children(process: subprocess.Popen[str], modules: tuple[str, ...]) -> list[psutil.Process]:
    """The processes of these modules, once there is one of each, in their order."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        lines = {}
        for one in psutil.Process(process.pid).children(recursive=True):
            try:
                lines[one] = one.cmdline()
            except psutil.Error:
                continue
        found = [next((one for one, line in lines.items() if module in line), None) for module in modules]
        if all(found):
            return [one for one in found if one is not None]
        time.sleep(0.02)
    raise AssertionError("they did not start")


STAGE, WORKER = "handlers", "handlers.validate.workers.worker"


def test_each_variant_is_measured_or_said_to_be_none_that_can_be(tmp_path: Path, folders: Folders, start: Start) -> None:
    """Sound, damaged in two ways, of an unknown format, rejected: each is told from the others."""
    plain = folders["onnx"]
    names = ("onnx", "onnx-int8", "onnx-fp16", "onnx-int4", "vendor-npz")
    export = publish(tmp_path / "run" / "step-4", dict.fromkeys(names, plain), {"onnx-int8-static": "agreement 0.1 < 0.85"})
    (export / "onnx-int8" / "model.onnx").write_bytes(bytes((plain / "model.onnx").stat().st_size))
    with open(export / "onnx-fp16" / "model.onnx", "ab") as stream:
        stream.write(b"x")
    (export / "onnx-int4" / "config.json").unlink()
    seal_without_sizes = json.loads((export / "MANIFEST.json").read_text())
    seal_without_sizes["files"] = [row for row in seal_without_sizes["files"] if row["path"] != "onnx-int4/config.json"]
    (export / "MANIFEST.json").write_text(json.dumps(seal_without_sizes))
    before = {path: path.stat().st_mtime_ns for path in export.rglob("*")}
    code, value, said = answer(start(export, *names, "onnx-int8-static", *QUICK, "--json"))
    assert code == 3 and said == ""
    found = by_name(value)
    (point,) = found["onnx"]["points"]
    assert point["tokens_per_second"]["median"] > 0 and point["prefill_seconds"]["rounds"] == 2 and point["speed_over_pytorch"] is None
    assert found["onnx"]["fault"] is None and found["onnx"]["starts"][0]["peak_rss_bytes"] > 20 << 20
    assert value["no_pytorch"] == "There is no PyTorch model in this export to compare with."
    assert value["kind"] == "causal" and value["versions"].keys() >= {"ckptd", "onnxruntime", "python"} and value["machine"]["cpu"]
    told = {name: one["code"] for name, one in found.items()}
    assert told == {
        "onnx": None, "onnx-int8": "engine", "onnx-fp16": "export-damaged", "onnx-int4": told["onnx-int4"], "vendor-npz": "engine-missing",
        "onnx-int8-static": "artifact-missing",
    }  # fmt: skip
    assert "config.json" in found["onnx-int4"]["fault"] and "agreement 0.1 < 0.85" in found["onnx-int8-static"]["fault"]
    assert f"has {(export / 'onnx-fp16' / 'model.onnx').stat().st_size:,} bytes instead of" in found["onnx-fp16"]["fault"]
    assert all(one["fault"] is None or ". Fix: " in one["fault"] for one in found.values())
    assert {path: path.stat().st_mtime_ns for path in export.rglob("*")} == before
    assert left_over(tmp_path) == [] and stray_handlers(tmp_path) == []


@pytest.mark.slow
def test_variants_run_in_turns_with_pytorch_and_are_shown_in_a_table_and_a_page(tmp_path: Path, folders: Folders, start: Start) -> None:
    export = publish(tmp_path / "run" / "step-4", folders)
    (tmp_path / "run" / "latest").symlink_to("step-4")
    for path in [export, *export.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    process = start(
        tmp_path / "run" / "latest", "--lengths", "4,8,4000", "--batches", "1,2", "--tokens", "3", "--rounds", "3", "--html", "page.html"
    )
    out, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert said.splitlines() == ["measuring PyTorch", "measuring pytorch", "measuring onnx", "measuring onnx-int8"]
    rows = [line.split() for line in out.splitlines() if line.startswith(("pytorch ", "onnx "))]
    assert len([row for row in rows if row[0] == "pytorch"]) == len([row for row in rows if row[0] == "onnx"]) == 5
    assert re.search(r"onnx: The model has \d+ positions \(1 thread, 1 × 4000 tokens; 1 thread, 2 × 4000 tokens\)\.", out)
    page = (tmp_path / "page.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page and "Over PyTorch" in page
    for title in ("Tokens decoded per second", "Time to the first token", "Start", "Peak memory"):
        assert page.count(f"{title}<small>") >= 1
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_a_translator_encodes_and_decodes(tmp_path: Path, marian_export: Any, start: Start) -> None:
    export = publish(tmp_path / "run" / "step-4", {"pytorch": marian_export.merged, "onnx": marian_export.onnx})
    code, value, _ = answer(start(export, *QUICK, "--batches", "1,3", "--json"))
    assert code == 0 and value["kind"] == "seq2seq" and value["no_pytorch"] is None
    assert all(point["speed_over_pytorch"]["median"] > 0 for point in by_name(value)["onnx"]["points"])


@pytest.mark.slow
def test_where_memory_is_short_for_both_a_variant_is_measured_without_pytorch(tmp_path: Path, folders: Folders, start: Start) -> None:
    """The children may take half of what the variant needs more than PyTorch alone."""
    export = publish(tmp_path / "run" / "step-4", {name: folders[name] for name in ("pytorch", "onnx")})
    process = start(export, "onnx", *LONG)
    held = dict.fromkeys(("worker-pytorch-1.json", "worker-onnx-1.json"), 0)
    (stage,) = wait_for_children(process, (STAGE,))
    while held["worker-onnx-1.json"] < 10 << 20:  # until it has loaded its libraries and its model
        for one in psutil.Process(process.pid).children(recursive=True):
            name = Path(one.cmdline()[-1]).name
            if name in held:
                held[name] = exact_memory([one.pid])
    allowed = exact_memory([stage.pid]) + held["worker-pytorch-1.json"] + held["worker-onnx-1.json"] // 2
    process.send_signal(signal.SIGINT)
    process.communicate()
    fraction = f"{allowed / memory()[0]:.6f}"
    options = ("--lengths", "4", "--tokens", "64", "--rounds", "150")
    code, value, _ = answer(start(export, "onnx", *options, "--json", CKPTD_LIMITS__MEMORY_FRACTION=fraction))
    assert value["notes"] == ["onnx with 1 thread was measured without PyTorch beside it: both together did not fit into the memory."]
    (point,) = by_name(value)["onnx"]["points"]
    assert code == 0 and point["tokens_per_second"]["rounds"] == 150 and point["speed_over_pytorch"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path, folders: Folders, start: Start, number: signal.Signals) -> None:
    export = publish(tmp_path / "run" / "step-4", {"onnx": folders["onnx"]})
    process = start(export, *LONG)
    wait_for_children(process, (STAGE, WORKER))
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "" and "interrupted" in said and "Traceback" not in said
    assert left_over(tmp_path) == [] and stray_handlers(tmp_path) == []


@pytest.mark.parametrize(("killed", "code"), some([(STAGE, "killed"), (WORKER, "worker-lost")], 2))
def test_what_is_killed_costs_one_variant(tmp_path: Path, folders: Folders, start: Start, killed: str, code: str) -> None:
    export = publish(tmp_path / "run" / "step-4", {"onnx": folders["onnx"], "onnx-int8": folders["onnx-int8"]})
    process = start(export, *LONG[:-4], "--rounds", "40", "--json")
    wait_for_children(process, (STAGE, WORKER))
    victims = wait_for_children(process, (killed,))
    victims[0].kill()
    ended, value, _ = answer(process)
    found = by_name(value)
    assert ended == 3 and found["onnx"]["code"] == code and "SIGKILL" in found["onnx"]["fault"]
    assert found["onnx-int8"]["fault"] is None and found["onnx-int8"]["points"][0]["tokens_per_second"]["rounds"] == 40
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_a_measurement_that_was_killed_is_swept_by_the_next_one(tmp_path: Path, folders: Folders, start: Start) -> None:
    export = publish(tmp_path / "run" / "step-4", {"onnx": folders["onnx"]})
    process = start(export, *LONG)
    children = wait_for_children(process, (STAGE, WORKER))
    process.kill()
    process.communicate()
    psutil.wait_procs(children, 10)
    assert stray_handlers(tmp_path) == [] and left_over(tmp_path)
    code, _, _ = answer(start(export, *QUICK, "--json"))
    assert code == 0 and left_over(tmp_path) == []


@pytest.mark.slow
def test_the_limit_of_time_is_kept_and_said(tmp_path: Path, folders: Folders, start: Start) -> None:
    export = publish(tmp_path / "run" / "step-4", {"onnx": folders["onnx"]})
    options = ("--lengths", "4", "--rounds", "1000", "--tokens", "64", "--json")
    code, value, _ = answer(start(export, *options, "--minutes", "0.02", "--finish"))
    (cut,) = value["cut"]
    rounds = by_name(value)["onnx"]["points"][0]["tokens_per_second"]["rounds"]
    assert code == 0 and 1 <= rounds < 1000 and cut == f"onnx with 1 thread: {rounds} of 1000 rounds were made."
    assert value["limit_seconds"] == 1.2
    code, value, _ = answer(start(export, *options, "--minutes", "0.01"))  # less than it takes to load what runs a graph
    assert code == 1 and value["cut"] == ["onnx with 1 thread was not measured."]
    assert any("more --minutes, or --finish" in note for note in value["notes"])
    assert left_over(tmp_path) == []
