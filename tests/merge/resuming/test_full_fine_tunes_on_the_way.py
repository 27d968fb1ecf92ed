"""Full fine-tunes that are rewritten: interrupted, from pickled and from quantized weights, in a memory that stays flat."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.jobs.messages import StageResult
from daemon.contract.jobs.options import MergeOptions
from handlers.merge.api import MergeReport
from handlers.merge.engine import resume_ledger
from handlers.merge.full_finetune import CONVERTED, PICKLED, take_over
from handlers.models.folder import ModelFolder
from tests import models
from tests.merge import helpers
from tests.merge.interrupted import ROOT, Stop, digests, marks, noted, one_worker

LIMIT = 1 << 16
PEAK = """
import sys
from pathlib import Path
from handlers.child.process import peak_rss
from handlers.merge import Execution, MergeOptions
from handlers.merge.full_finetune import take_over
take_over(Path(sys.argv[1]), Path(sys.argv[2]), MergeOptions(dtype="float32", max_shard_size=1 << 26), Execution(threads=2))
print(peak_rss())
"""


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in fp32 and one file. Read only."""
    return models.make_base(tmp_path_factory.mktemp("full") / "safe", dtype="float32")


@pytest.fixture(scope="module")
def pickled(safe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in two `.bin` files, with its tied head in them once more. Read only."""
    folder = tmp_path_factory.mktemp("pickled")
    shutil.copyfile(safe / "config.json", folder / "config.json")
    table = helpers.stored(safe)
    half = sorted(table)[: len(table) // 2]
    parts = {name: f"pytorch_model-0000{1 if name in half else 2}-of-00002.bin" for name in table}
    table["lm_head.weight"], parts["lm_head.weight"] = table["model.embed_tokens.weight"], parts["model.embed_tokens.weight"]
    for part in set(parts.values()):
        torch.save({name: tensor for name, tensor in table.items() if parts[name] == part}, folder / part)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
    return folder


def taken(checkpoint: Path, output: Path, **options: Any) -> MergeReport:
    output.mkdir(exist_ok=True)
    return take_over(checkpoint, output, *helpers.settings(**options))


def stopped(checkpoint: Path, output: Path, finished: int, **options: Any) -> Path:
    """A folder in which the rewriting was stopped as soon as so many files were finished."""

    def stop(fraction: float, message: str) -> None:
        if len(noted(output)) == finished:
            raise Stop

    with one_worker(), pytest.raises(Stop):
        taken(checkpoint, output, progress=stop, **options)
    assert len(noted(output)) == finished
    return output


@pytest.mark.parametrize("kind", ["safe", "pickled"])
def test_an_interrupted_rewriting_goes_on_at_the_file_and_ends_with_the_same_bytes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:  # R6.5
    checkpoint = request.getfixturevalue(kind)
    wanted = {"dtype": "bfloat16", "max_shard_size": LIMIT}
    fresh = taken(checkpoint, tmp_path / "fresh", **wanted)
    output = stopped(checkpoint, tmp_path / "out", 2, **wanted)
    before = marks(output, noted(output))
    report = taken(checkpoint, output, **wanted)
    assert (report.figures.resumed_files, fresh.figures.resumed_files) == (2, 0)
    assert marks(output, list(before)) == before, "a finished file was written again"
    assert digests(output) == digests(tmp_path / "fresh")
    assert report.digests == {name: digests(output)[name] for name in ModelFolder(output).files.names}


def test_other_wanted_begin_again_and_leave_nothing_of_the_former_ones(safe: Path, tmp_path: Path) -> None:
    output = stopped(safe, tmp_path / "out", 2, dtype="bfloat16", max_shard_size=LIMIT)
    assert taken(safe, output, dtype="float16", max_shard_size=LIMIT).figures.resumed_files == 0
    taken(safe, tmp_path / "fresh", dtype="float16", max_shard_size=LIMIT)
    assert digests(output) == digests(tmp_path / "fresh")
    for number, wanted in enumerate(({}, {"dtype": "float32"})):  # neither asks for what is not there
        placed = stopped(safe, tmp_path / f"placed-{number}", 2, dtype="bfloat16", max_shard_size=LIMIT)
        assert taken(safe, placed, **wanted).strategy == "passthrough"
        assert sorted(digests(placed)) == ["config.json", "generation_config.json", "model.safetensors"]


@pytest.mark.slow
def test_a_stage_that_was_killed_goes_on_in_its_staging_folder(safe: Path, tmp_path: Path) -> None:  # R6.5
    context = helpers.context(tmp_path / "job", safe, None, method="full")
    merge = MergeOptions(dtype="bfloat16", max_shard_size=LIMIT)  # type: ignore[arg-type]
    context = context.model_copy(update={"work": context.work.model_copy(update={"merge": merge})})
    job = tmp_path / "job/job.json"
    job.write_text(context.model_dump_json())
    command = [sys.executable, "-m", "handlers", str(job)]
    killed = subprocess.run(command, cwd=ROOT, env={**os.environ, "CKPTD_FAULT": "merge.shard.recorded"}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(noted(Path(context.staging))) == 1
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
    result = StageResult.model_validate_json(Path(context.result).read_bytes())
    assert (result.strategy, result.figures["resumed_files"], result.figures["output_dtype"]) == ("streaming", 1, "bfloat16")
    assert {entry.path: entry.sha256 for entry in result.files} == digests(Path(context.staging))
    assert not any(entry.path.startswith(".") for entry in result.files)


@pytest.mark.parametrize("kind", ["safe", "pickled"])
def test_a_checkpoint_that_changes_while_it_is_read_is_noticed_and_nothing_of_it_is_kept(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint = shutil.copytree(request.getfixturevalue(kind), tmp_path / "checkpoint")

    def disturb(fraction: float, message: str) -> None:
        if len(noted(tmp_path / "out")) == 2:
            os.utime(checkpoint / ModelFolder(checkpoint).files.names[0])

    with one_worker(), pytest.raises(Retryable, match="the checkpoint's file changed while it was read") as caught:
        taken(checkpoint, tmp_path / "out", dtype="bfloat16", max_shard_size=LIMIT, progress=disturb)
    assert caught.value.fault.code == "checkpoint-changed"
    assert taken(checkpoint, tmp_path / "out", dtype="bfloat16", max_shard_size=LIMIT).figures.resumed_files == 0


@pytest.mark.parametrize("wanted", [{"dtype": "bfloat16"}, {"max_shard_size": LIMIT}, {"dtype": "float16", "max_shard_size": LIMIT}])
def test_pickled_weights_are_converted_and_then_rewritten_alike(wanted: dict[str, Any], safe: Path, pickled: Path, tmp_path: Path) -> None:
    before = helpers.snapshot(pickled)
    report = taken(pickled, tmp_path / "out", **wanted)
    assert helpers.snapshot(pickled) == before
    assert (report.strategy, report.warnings) == ("streaming", (PICKLED,))
    wanted = getattr(torch, wanted.get("dtype", "float32"))
    expected, written = helpers.stored(safe), helpers.stored(tmp_path / "out")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], tensor.to(wanted)) for name, tensor in expected.items())
    model = ModelFolder(tmp_path / "out")
    assert sorted(path.name for path in model.path.iterdir()) == sorted(["config.json", *model.weight_names])
    assert model.headers.keys() == expected.keys()


def test_pickled_weights_that_are_as_they_should_be_are_only_converted(pickled: Path, tmp_path: Path) -> None:
    report = taken(pickled, tmp_path / "out", dtype="float32")
    assert (report.strategy, report.warnings) == ("passthrough", (PICKLED,))
    assert not (tmp_path / "out" / CONVERTED).exists() and not (tmp_path / "out" / resume_ledger.LEDGER).exists()
    taken(pickled, tmp_path / "plain")
    assert helpers.stored(tmp_path / "out").keys() == helpers.stored(tmp_path / "plain").keys()


def test_a_quantized_checkpoint_is_unpacked_for_a_dtype_and_left_packed_for_a_size(pico_base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    load, packed = AutoModelForCausalLM.from_pretrained, tmp_path / "packed"
    load(pico_base, dtype=torch.bfloat16, quantization_config=BitsAndBytesConfig(load_in_4bit=True)).save_pretrained(packed)
    report = taken(packed, tmp_path / "out", dtype="bfloat16")
    assert any("14 of its tensors were dequantized to bfloat16" in warning for warning in report.warnings)
    expected = load(packed).dequantize().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in helpers.stored(tmp_path / "out").items())
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert taken(packed, tmp_path / "cut", max_shard_size=LIMIT).warnings == ()
    before, after = helpers.stored(packed), helpers.stored(tmp_path / "cut")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "cut/config.json").read_bytes() == (packed / "config.json").read_bytes()


def test_a_quantized_checkpoint_that_nobody_can_unpack_is_refused_for_a_dtype(safe: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(safe, tmp_path / "gptq")
    config = json.loads((safe / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(Permanent, match="quantized with gptq, and ckptd can't dequantize it") as caught:
        taken(checkpoint, tmp_path / "out", dtype="bfloat16")
    assert caught.value.fault.remedy == 'set merge.dtype to "base"'
    assert taken(checkpoint, tmp_path / "cut", max_shard_size=LIMIT).strategy == "streaming"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_tensors(tmp_path: Path) -> None:
    peaks = []
    for count in (8, 160):
        folder = tmp_path / str(count)
        (folder / "out").mkdir(parents=True)
        save_file({f"layer.{number}": torch.ones(256, 1024).bfloat16() for number in range(count)}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
        command = [sys.executable, "-c", PEAK, str(folder), str(folder / "out")]
        peaks.append(int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout))
        assert len(ModelFolder(folder / "out").files.names) == -(-count // 64)
    assert peaks[1] - peaks[0] < 24 << 20, f"{peaks} bytes for 4 MiB and 80 MiB of weights"
