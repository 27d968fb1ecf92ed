"""The texts of the training itself: the reference is measured on them, says what they are like, and is not reused when they change."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from daemon.contract.jobs.messages import Outcome
from daemon.contract.jobs.options import ValidateOptions, Work
from daemon.contract.jobs.plan import all_specs
from daemon.journal.rows import JobRow
from daemon.running.rules.resume_keys import stage_key
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.selection import choose_calibration
from tests.onnx.conftest import make_context
from tests.validate.conftest import StartStage


def conversations(folder: Path, count: int = 40) -> Path:
    folder.mkdir()
    rows = [
        {"messages": [{"role": "user", "content": f"for name {number}"}, {"role": "assistant", "content": f"print(name, {number})"}]}
        for number in range(count)
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    return folder


@pytest.mark.slow
def test_the_reference_is_measured_on_the_trainings_own_conversations(
    start_stage: StartStage, folders: dict[str, Path], pico_base: Path, pico_checkpoint: Path, tmp_path: Path
) -> None:  # R2.6
    data = conversations(tmp_path / "data")
    run = start_stage(
        "reference", pico_checkpoint, pico_base, {"merge": folders["pytorch"]}, data=str(data), samples=4, new_tokens=4, speed_tokens=0
    )
    result = run.result()
    assert result.outcome is Outcome.SUCCEEDED, result.fault
    prompts, found = result.figures["prompts"], result.figures["texts"]
    assert len(prompts) == 4 and all(one.startswith("<|user|>for name") and one.endswith("<|end|>") for one in prompts)
    assert found["sources"] == {f"{data} (validate.data)": 4} and found["texts"] == 4
    assert found["scripts"] == {"Latin": 1.0} and 0 < found["vocabulary_share"] < 1 and found["cut"] == 0
    assert found["shortest"] <= found["median"] <= found["p95"] <= found["longest"]
    calibrating = choose_calibration(ValidateOptions(data=str(data), samples=4), Rendering.of(ModelFiles.in_folder(folders["pytorch"])), 64)
    assert calibrating.sources[0][1] >= 10 and not set(calibrating.plain) & set(prompts)


def test_stages_that_read_texts_are_made_again_when_the_files_change_under_their_name(tmp_path: Path) -> None:
    data, prompts = conversations(tmp_path / "data", 3), tmp_path / "prompts.txt"
    prompts.write_text("one\n")
    context = make_context(tmp_path, "merge", {}, tmp_path)
    work = Work(export=context.work.export, validation=ValidateOptions(data=str(data), prompts=str(prompts)))
    job = JobRow("job", "running", context.checkpoint, work, Path("/pin"), Path("/target"), None, "now", None, None)

    def keys() -> dict[str, str]:
        return {spec.name: stage_key(spec, job, {}, None, "cpu") for spec in all_specs()}

    def changed(before: dict[str, str]) -> set[str]:
        return {name for name, key in keys().items() if key != before[name]}

    reading = {spec.name for spec in all_specs() if "validation.prompts" in spec.settings}
    assert {"reference", "onnx-int8-static", "onnx-int4", "onnx-genai-int4"} <= reading
    before = keys()
    assert changed(before) == set()
    prompts.write_text("two\n")
    assert changed(before) == reading
    before = keys()
    (data / "more.jsonl").write_text(json.dumps({"text": "another"}))
    assert changed(before) == reading
    before = keys()
    (data / "README.md").write_text("no texts")
    assert changed(before) == set()
