"""The demo's two training processes, run as the demo runs them: `python -m …` with real libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handlers.demo import corpus


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=240)


def events_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("demo") / "base"
    return folder, events_of(run("handlers.demo.make_base", str(folder), "--steps", "25", "--threads", "1"))


@pytest.mark.slow
def test_the_base_is_a_published_model_that_loads_with_tokenizer_chat_template_and_generation_config(made: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder, _ = made
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert model.dtype == torch.bfloat16
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert len(tokenizer) == model.config.vocab_size == 2048
    text = "Gib die Größe von '東京' zurück.\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "add two numbers"}, {"role": "assistant", "content": "a + b"}], tokenize=False
    )
    assert rendered == "add two numbers?\na + b<|end|>"
    generation = GenerationConfig.from_pretrained(folder)
    assert (generation.do_sample, generation.eos_token_id, generation.pad_token_id) == (
        True,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )


@pytest.mark.slow
def test_the_base_learns_and_tells_each_step_as_a_json_line(made: Any) -> None:
    folder, events = made
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[0] == pytest.approx(7.7, abs=0.3)  # ln 2048 = 7.62: nothing learnt yet
    assert losses[-1] < losses[0] - 0.3
    assert [event["event"] for event in events if event["event"] != "step"] == ["corpus", "tokenizer", "sample", "saved"]
    assert next(event for event in events if event["event"] == "sample")["text"].startswith("Create a")
    assert events[-1]["bytes"] == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.slow
def test_fine_tuning_leaves_only_the_last_checkpoint_and_tells_what_was_saved_and_rotated(pico_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run("handlers.demo.finetune", str(pico_base), str(folder), "--steps", "4", "--save-steps", "2", "--threads", "1")
    events = events_of(done)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-4"]
    assert (folder / "checkpoint-4" / "adapter_model.safetensors").is_file()
    assert json.loads((folder / "checkpoint-4" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(pico_base)
    told = [(event["event"], event.get("step"), Path(event.get("folder", "")).name) for event in events if event["event"] != "step"]
    assert told == [
        ("start", None, ""),
        ("checkpoint", 2, "checkpoint-2"),
        ("checkpoint", 4, "checkpoint-4"),
        ("rotated", None, "checkpoint-2"),
        ("done", None, ""),
    ]
    steps = [event for event in events if event["event"] == "step"]
    assert steps[-1]["step"] == 4 and steps[-1]["fraction"] == 1.0 and steps[-1]["loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["handlers.demo.make_base", "{full}"], "not an empty folder"),
        (["handlers.demo.make_base", "{new}", "--seconds", "0"], "is not a positive time"),
        (["handlers.demo.make_base", "{new}", "--steps", "-1"], "is not a positive number"),
        (["handlers.demo.finetune", "{full}", "{new}"], "no config.json"),
        (["handlers.demo.finetune", "{full}", "{new}", "--steps", "2", "--save-steps", "3"], "does not fit"),
    ],
)
def test_bad_arguments_end_with_one_sentence_and_exit_code_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = run(*(argument.format(full=tmp_path / "full", new=tmp_path / "new") for argument in arguments))
    assert done.returncode == 2
    assert sentence in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_fine_tuning_text_differs_from_the_bases_in_a_way_that_can_be_seen() -> None:
    base, narrow = "\n".join(corpus.base_texts()), "\n".join(corpus.finetune_texts())
    assert len(base) > 200_000 and len(narrow) > 30_000
    assert narrow.count("event loop") / len(narrow) > 20 * base.count("event loop") / len(base)
    assert all(text.rstrip().endswith((".", "!")) for text in (*corpus.base_texts(), *corpus.finetune_texts()))
