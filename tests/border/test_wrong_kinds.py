"""Fields of the wrong kind in adapter_config.json and config.json: permanent, said once with field and value, and nobody waits for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.inspection import inspect
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import OtherCode
from daemon.operating.monitoring.explain import CheckpointExplanation, explain
from handlers.merge import merge_adapter
from handlers.merge.adapters.adapter import read_adapter
from handlers.models.folder import ModelFolder
from tests.detection.bench import Bench

HUGE = 10**400
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a number for the base": ({"base_model_name_or_path": 5}, "base_model_name_or_path is 5, and it must be the base's name or folder as"),
    "NUL in the base": ({"base_model_name_or_path": "a\0b"}, r"base_model_name_or_path is 'a\x00b', and it must be"),
    "half a surrogate in the base": ({"base_model_name_or_path": "\ud800"}, "'base_model_name_or_path' is neither text nor a number"),
    "a list for the revision": ({"revision": ["main"]}, "revision is a list of one entry, and it must be text"),
    "rank 0": ({"r": 0}, "r is 0, and it must be a whole number of at least 1"),
    "a negative rank": ({"r": -4}, "r is -4, and it must be a whole number of at least 1"),
    "a rank in words": ({"r": "four"}, "r is 'four', and it must be a whole number of at least 1"),
    "a boolean rank": ({"r": True}, "r is true, and it must be a whole number"),
    "a huge rank": ({"r": HUGE}, "r is a number of 1329 bits, and it must be a whole number"),
    "half a rank": ({"r": 4.5}, "r is 4.5, and it must be a whole number"),
    "alpha is NaN": ({"lora_alpha": float("nan")}, "lora_alpha is NaN, and it must be a finite number"),
    "alpha is infinite": ({"lora_alpha": float("-inf")}, "lora_alpha is infinite, and it must be a finite number"),
    "a huge alpha": ({"lora_alpha": HUGE}, "lora_alpha is a number of 1329 bits, and it must be a finite number"),
    "target is a number": ({"target_modules": 5}, "target_modules is 5, and it must be text, a list of texts, or null"),
    "targets are numbers": ({"target_modules": ["q_proj", 5]}, "target_modules is a list of 2 entries, and it must be"),
    "ranks are a list": ({"rank_pattern": [1]}, "rank_pattern is a list of one entry, and it must be an object of names"),
    "a rank pattern of 0": ({"rank_pattern": {"k_proj": 4, "q_proj": 0}}, "rank_pattern says 0 for 'q_proj', and it must be an object of"),
    "an alpha pattern in words": ({"alpha_pattern": {"q_proj": "8"}}, "alpha_pattern says '8' for 'q_proj', and it must be an object of"),
    "saved modules are one text": ({"modules_to_save": "score"}, "modules_to_save is 'score', and it must be a list"),
    "layers in words": ({"layers_to_transform": "all"}, "layers_to_transform is 'all', and it must be a layer's number"),
    "an unknown bias": ({"bias": "some"}, "bias is 'some', and it must be \"none\", \"all\" or \"lora_only\""),
    "a switch in words": ({"use_rslora": "yes"}, "use_rslora is 'yes', and it must be true or false"),
    "tokens in words": ({"trainable_token_indices": ["a"]}, "trainable_token_indices is a list of one entry, and it must be"),
    "no method": ({"peft_type": None}, "it names no peft_type"),
    "a number for the method": ({"peft_type": 5}, "peft_type is 5, and it must be PEFT's name of a method"),
    "an escape in a value": ({"bias": "\x1b[31mred"}, r"bias is '\x1b[31mred', and it must be"),
}  # fmt: skip


def spoil(folder: Path, values: dict[str, Any], name: str = "adapter_config.json") -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize("case", WRONG)
def test_a_field_of_the_wrong_kind_is_refused_by_the_daemon_and_by_the_stages(case: str, sources: dict[str, Path], tmp_path: Path) -> None:
    values, said = WRONG[case]
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(sources["adapter"], folder)
    spoil(folder, values)
    found = inspect(folder)
    assert found.complete and found.refusal is not None
    with pytest.raises(Permanent) as caught:
        read_adapter(folder)
    for fault in (found.refusal, caught.value.fault):
        assert fault.code == "bad-adapter-config"
        assert said in fault.cause
        assert fault.path == str(folder / "adapter_config.json")
        assert fault.sentence().isprintable()


MODEL: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary in words": ({"vocab_size": "many"}, "vocab_size is 'many', and it must be a whole number of at least 0"),
    "architectures are a text": ({"architectures": "Qwen3ForCausalLM"}, "architectures is 'Qwen3ForCausalLM', and it must be a list"),
    "an architecture is a number": ({"architectures": [5]}, "architectures is a list of one entry, and it must be a list of names"),
    "type is a list": ({"model_type": ["qwen3"]}, "model_type is a list of one entry, and it must be text"),
    "ties in words": ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', and it must be true or false"),
    "a nested field": ({"text_config": {"vocab_size": -1}}, "text_config.vocab_size is -1, and it must be a whole number"),
    "a billion layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, and it must be a whole number up to 10,000"),
}  # fmt: skip


@pytest.mark.parametrize("case", MODEL)
def test_a_models_configuration_of_a_wrong_kind_is_refused_by_the_stages(case: str, sources: dict[str, Path], tmp_path: Path) -> None:
    values, said = MODEL[case]
    shutil.copytree(sources["full"], tmp_path / "full")
    spoil(tmp_path / "full", values, "config.json")
    with pytest.raises(Permanent) as caught:
        ModelFolder.opened(tmp_path / "full", "checkpoint")
    assert caught.value.fault.code == "bad-model-config"
    assert said in caught.value.fault.cause


def test_a_checkpoint_that_is_refused_is_said_once_listed_and_delays_no_other(
    bench: Bench,
    sources: dict[str, Path],
) -> None:
    for number, (values, _) in enumerate(WRONG.values(), 1):
        shutil.copytree(sources["adapter"], bench.root / "run" / f"checkpoint-{number}")
        spoil(bench.root / "run" / f"checkpoint-{number}", {"global_step": number}, "trainer_state.json")
        spoil(bench.root / "run" / f"checkpoint-{number}", values)
    sound = len(WRONG) + 1
    shutil.copytree(sources["adapter"], bench.root / "run" / f"checkpoint-{sound}")
    spoil(bench.root / "run" / f"checkpoint-{sound}", {"global_step": sound}, "trainer_state.json")
    with capture_logs() as logs:
        bench.pass_time(600, rescan=5)
    assert [job.checkpoint.step for job in bench.jobs()] == [sound]
    said = [one for one in logs if one.get("code") == "bad-adapter-config"]
    assert len(said) == len(WRONG) == len(bench.tracker.listing.passed_over)
    assert not [one for one in logs if "exc_info" in one or "Traceback" in str(one)]
    bench.restart()
    with capture_logs() as logs:
        bench.pass_time(60)
    assert logs == []
    assert len(bench.tracker.listing.passed_over) == len(WRONG)
    mended = bench.root / "run" / "checkpoint-1"
    shutil.copy(sources["adapter"] / "adapter_config.json", mended)
    bench.pass_time(60)
    assert sorted(job.checkpoint.step for job in bench.jobs()) == [1, sound]


def test_explain_says_the_field_and_what_to_do(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoint-4"
    shutil.copytree(sources["adapter"], folder)
    spoil(folder, {"base_model_name_or_path": 5})
    settings = Settings(watch={"roots": (tmp_path,)}, state={"directory": tmp_path / "state"})
    told = explain(settings, folder)
    assert isinstance(told, CheckpointExplanation) and told.refusal is not None
    assert "base_model_name_or_path is 5" in told.refusal
    assert "save the adapter again with PEFT" in told.refusal


def test_what_training_logged_amiss_is_left_out_and_a_step_that_no_journal_holds_is_none(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(sources["adapter"], folder)
    odd = {"best_metric": float("nan"), "epoch": "one", "max_steps": HUGE, "best_model_checkpoint": 5, "best_global_step": True}
    logged = [{"step": 2, "loss": "low"}, {"step": 4, "loss": 1.5}, 7, {"eval_x": "\ud800"}]
    spoil(folder, {**odd, "log_history": logged}, "trainer_state.json")
    found = inspect(folder)
    assert found.complete and found.refusal is None
    assert {key: value for key, value in found.metadata.items() if key not in ("rank", "alpha", "target_modules")} == {
        "loss_history": [[4, 1.5]], "loss": 1.5,
    }  # fmt: skip
    for step in (HUGE, True, -1, "4", None):
        spoil(folder, {"global_step": step}, "trainer_state.json")
        assert inspect(folder).missing == ("trainer_state.json has no global_step",)


PEFTS: list[dict[str, Any]] = [
    {"peft_type": "FOUR"},
    {"peft_type": "LOHA", "r": 0}, {"peft_type": "LOHA", "alpha": "x"}, {"peft_type": "IA3", "feedforward_modules": 5},
    {"peft_type": "VERA", "projection_prng_key": "x"}, {"init_lora_weights": "no such"}, {"megatron_config": 5},
]  # fmt: skip


@pytest.mark.parametrize("values", PEFTS, ids=str)
def test_what_only_peft_reads_is_refused_for_good_where_peft_does_not_take_it(
    values: dict[str, Any], sources: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(sources["adapter"], folder)
    spoil(folder, values)
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent) as caught:
        merge_adapter(folder, sources["base"], tmp_path / "out")
    assert caught.value.fault.sentence().isprintable()
    if values == {"peft_type": "FOUR"}:
        assert "peft_type is 'FOUR', which PEFT " in caught.value.fault.cause


def test_a_fault_can_be_written_whatever_a_name_or_a_value_holds() -> None:
    error = Permanent(OtherCode("x"), "read \ud800", "it holds '\udcff'", "mend it", path="/runs/\udce9", details="\ud800")
    said = error.fault.model_dump_json()
    assert type(error.fault).model_validate_json(said) == error.fault
    assert r"/runs/\udce9" in error.fault.sentence()
    acting = Permanent(OtherCode("x"), "read it", "it says \x1b[31m and \u202e and\na second line, ä", "mend it").fault
    assert acting.cause == "it says \\x1b[31m and \\u202e and\na second line, ä"
