"""The real lm-evaluation-harness, in its toolchain, on the live model and on artifacts: it gets what transformers would give it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.toolchains import real

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
state, toolchain, libraries = real.fixtures("lm-eval")

CAPITALS = [("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Egypt", "Cairo"), ("Peru", "Lima")]
COMMON = {
    "dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}", "num_fewshot": 0,
}  # fmt: skip
CHOOSE = {
    **COMMON, "task": "ckptd_choose", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
WRITE = {
    **COMMON, "task": "ckptd_write", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
    "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 40, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
ROLL = {
    **COMMON, "task": "ckptd_roll", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
    "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
}  # fmt: skip
SAMPLE = {**WRITE, "task": "ckptd_sample", "generation_kwargs": {"until": ["\n"], "do_sample": True, "temperature": 0.7}}

BY_TRANSFORMERS = """
import json, sys
from pathlib import Path
from handlers.toolchains import use
use.borrow(Path(sys.argv[1]))
import lm_eval
from lm_eval.tasks import TaskManager
from lm_eval.models.huggingface import HFLM
import transformers, torch
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
lm = HFLM(pretrained=model, tokenizer=transformers.AutoTokenizer.from_pretrained(sys.argv[2]), batch_size=1, max_length=256)
results = lm_eval.simple_evaluate(model=lm, tasks=["ckptd_choose", "ckptd_write", "ckptd_roll"], bootstrap_iters=0,
    task_manager=TaskManager(include_path=sys.argv[3]))
rows = {task: [[s["doc_id"], s.get("acc", s.get("exact_match", s.get("word_perplexity"))), s["resps"]] for s in given]
    for task, given in results["samples"].items()}
Path(sys.argv[4]).write_text(json.dumps(rows, default=str))
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks whose data lies beside them."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {"question": f"{number}. The capital of {country} is", "choices": [f" {city}", " Bonn", " the sea"], "answer": 0}
        for number, (country, city) in enumerate(CAPITALS * 3)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in (CHOOSE, WRITE, ROLL, SAMPLE):
        files = {"dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}}
        (folder / f"{task['task']}.yaml").write_text(json.dumps({**task, **files}))  # JSON is YAML
    return folder


@pytest.fixture(scope="module")
def report(state: Path, tasks: Path, pico_base: Path, pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of an export with tasks of the harness, made by `ckptd export`."""
    home = tmp_path_factory.mktemp("export")
    options = {"include": str(tasks), "variants": ["pytorch", "onnx-int8"]}
    wanted = [
        {"name": "choose", "harness": ["ckptd_choose"], "drop": 1.0, **options},
        {"name": "write", "harness": ["ckptd_write"], **options},
        {"name": "both", "harness": ["ckptd_choose", "ckptd_choose_again"], **options},
        {"name": "roll", "harness": ["ckptd_roll"], **options},
        {"name": "sampled", "harness": ["ckptd_sample"], **options},
        {"name": "chat", "harness": ["ckptd_choose"], "chat_template": True, "limit": 4, **options},
    ]
    again = json.loads((tasks / "ckptd_choose.yaml").read_text()) | {"task": "ckptd_choose_again"}
    (tasks / "ckptd_choose_again.yaml").write_text(json.dumps(again))
    environment = {
        **os.environ, "CKPTD_STATE__DIRECTORY": str(state), "CKPTD_EXPORT__VARIANTS": "pytorch,onnx-int8", "CKPTD_VALIDATE__SAMPLES": "2",
        "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_VALIDATE__LONG_TOKENS": "0",
        "CKPTD_LIMITS__DISK_RESERVE": "0", "CKPTD_VALIDATE__TASKS": json.dumps(wanted), "CKPTD_VALIDATE__STRICTNESS": "loose",
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(pico_checkpoint), "--output", str(home), "--base", str(pico_base), "--force"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    (path,) = (path for path in home.glob("*/step-*/report.json") if not path.parent.is_symlink())
    assert done.returncode in (0, 3), done.stdout + done.stderr
    value: dict[str, Any] = json.loads(path.read_bytes())
    value["folder"] = str(path.parent)
    return value


def figures(report: dict[str, Any], variant: str) -> dict[str, Any]:
    (row,) = (row for row in report["artifacts"] if row["variant"] == variant)
    given: dict[str, Any] = row["figures"]["tasks"]
    return given


def test_each_item_has_the_score_that_the_harness_gives_by_transformers(
    report: dict[str, Any], toolchain: Path, tasks: Path, tmp_path: Path
) -> None:
    merged, answer = Path(report["folder"], "pytorch"), tmp_path / "rows.json"
    command = [sys.executable, "-c", BY_TRANSFORMERS, str(toolchain), str(merged), str(tasks), str(answer)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(answer.read_bytes())
    mine = figures(report, "pytorch")
    for name, task in (("choose", "ckptd_choose"), ("write", "ckptd_write")):
        ids = sorted((f"{task}/{row[0]}/" for row in rows[task]), key=str)
        by_id = {f"{task}/{row[0]}/": float(row[1]) for row in rows[task]}
        assert [by_id[name_] for name_ in ids] == [score for score, _ in mine[name]["by_text"][name]]
    nats = -sum(row[1][0] for row in rows["ckptd_roll"]) / sum(row[1][1] for row in rows["ckptd_roll"])
    assert mine["roll"]["value"] == pytest.approx(nats, rel=1e-3)
    assert mine["roll"]["better"] == "lower"


def test_a_quantized_artifact_is_compared_item_by_item_with_base_and_adapter(report: dict[str, Any]) -> None:
    mine = figures(report, "onnx-int8")
    for name in ("choose", "write", "roll"):
        assert mine[name]["items"] == 18, mine[name]
        assert mine[name]["difference"] == pytest.approx(mine[name]["value"] - mine[name]["live"])
        assert mine[name]["interval"][0] <= mine[name]["difference"] <= mine[name]["interval"][1]
    assert mine["both"]["items"] == 36
    assert mine["roll"]["difference"] != 0, "the graph in int8 is another model"
    assert mine["chat"]["items"] == 4


def test_a_task_that_samples_is_refused_in_one_sentence(report: dict[str, Any]) -> None:
    assert "no answer of the live model" in figures(report, "onnx-int8")["sampled"]["failed"]
    (said,) = (warning["text"] for warning in report["warnings"] if warning["source"] == "evaluate-live")
    assert "it samples or searches with beams" in said
