"""The stages merge and pytorch: what they write, what they leave behind, what they tell."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from daemon.contract.faults.errors import Permanent
from handlers.merge import stage
from handlers.pytorch import stage as pytorch
from tests.merge import helpers

IDS = torch.arange(2, 34)[None]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_merge_and_pytorch_leave_a_folder_that_transformers_loads(
    pico_base: Path, pico_checkpoint: Path, tmp_path: Path
) -> None:  # R1.4 R2.2
    from transformers import AutoTokenizer

    assert {"optimizer.pt", "trainer_state.json", "training_args.bin"} <= set(names(pico_checkpoint))
    first = helpers.context(tmp_path / "merge", pico_checkpoint, pico_base)
    merged = stage.run(first, helpers.reporter())
    second = helpers.context(tmp_path / "pytorch", pico_checkpoint, pico_base, merge=Path(first.staging))
    output = pytorch.run(second, helpers.reporter())
    folder = Path(second.staging)
    assert names(Path(first.staging)) == ["config.json", "generation_config.json", "model.safetensors"]
    assert names(folder) == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert merged.strategy == "streaming"
    assert merged.figures["changed_modules"] == 8
    assert (merged.figures["rank"], merged.figures["scale"], merged.figures["method"]) == (4, 2.0, "LORA")
    assert merged.figures["base_dtype"] == merged.figures["output_dtype"] == "bfloat16"
    assert merged.figures["base_bytes"] == 2 * merged.figures["parameters"]
    told = {name: output.figures[name] for name in ("weight_bytes", "tokenizer_from", "chat_template", "transformers", "transformers_why")}
    assert told == {
        "weight_bytes": merged.figures["base_bytes"], "tokenizer_from": "checkpoint", "chat_template": True, "transformers": "4.57",
        "transformers_why": None,
    }  # fmt: skip
    assert os.path.samefile(folder / "model.safetensors", Path(first.staging) / "model.safetensors")
    error = (helpers.logits(folder, IDS) - helpers.live_logits(pico_base, pico_checkpoint, IDS)).abs().max()
    assert error < 0.25 * helpers.logits(folder, IDS).std()
    assert AutoTokenizer.from_pretrained(folder).decode([5, 6]) == AutoTokenizer.from_pretrained(pico_checkpoint).decode([5, 6])
    json.dumps([merged.figures, output.figures])


def test_the_fallback_and_its_reason_reach_the_stage_s_output(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", init_lora_weights="olora")
    output = stage.run(helpers.context(tmp_path / "merge", adapter, pico_base), helpers.reporter())
    assert output.strategy == "peft"
    assert [(one.wanted, one.taken, one.reason) for one in output.fallbacks] == [
        ("streaming", "peft", "the initializer olora changes the base before the adapter is added")
    ]


def test_the_checkpoint_s_own_tokenizer_and_template_win_over_the_base_s(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    pin = shutil.copytree(pico_checkpoint, tmp_path / "pin")
    (pin / "chat_template.jinja").write_text("{{ 'mine' }}")
    base = shutil.copytree(pico_base, tmp_path / "base")
    (base / "added_tokens.json").write_text("{}")
    (base / "special_tokens_map.json").write_text("{}")
    merged = helpers.context(tmp_path / "merge", pin, base)
    stage.run(merged, helpers.reporter())
    context = helpers.context(tmp_path / "pytorch", pin, base, merge=Path(merged.staging))
    assert pytorch.run(context, helpers.reporter()).figures["tokenizer_from"] == "checkpoint"
    folder = Path(context.staging)
    assert (folder / "chat_template.jinja").read_text() == "{{ 'mine' }}"
    assert (folder / "tokenizer.json").read_bytes() == (pin / "tokenizer.json").read_bytes()
    assert not {"added_tokens.json", "special_tokens_map.json"} & set(names(folder))


def test_a_template_inside_the_checkpoint_s_tokenizer_is_not_overruled_by_the_base_s_file(pico_base: Path, tmp_path: Path) -> None:
    from handlers.models.files import copy_tokenizer

    checkpoint, target = tmp_path / "checkpoint", tmp_path / "target"
    checkpoint.mkdir()
    target.mkdir()
    (checkpoint / "tokenizer.json").write_text("{}")
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ 'inside' }}"}))
    copied = copy_tokenizer(checkpoint, pico_base, target)
    assert copied.chat_template
    assert names(target) == ["tokenizer.json", "tokenizer_config.json"]


def test_a_pin_that_shares_its_inode_with_the_trainer_s_file_is_copied(pico_base: Path, tmp_path: Path) -> None:
    trainer = shutil.copytree(pico_base, tmp_path / "checkpoint-4")
    pin = tmp_path / "pin"
    pin.mkdir()
    for path in trainer.iterdir():
        os.link(path, pin / path.name)
    context = helpers.context(tmp_path / "merge", pin, None, method="full")
    stage.run(context, helpers.reporter())
    written = Path(context.staging) / "model.safetensors"
    content = written.read_bytes()
    with open(trainer / "model.safetensors", "r+b") as stream:
        stream.seek(-64, os.SEEK_END)
        stream.write(b"\x07" * 64)
    assert written.read_bytes() == content


def test_an_adapter_without_a_base_says_what_to_set(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.5
    with pytest.raises(Permanent, match="no base was given") as caught:
        stage.run(helpers.context(tmp_path, pico_checkpoint, None), helpers.reporter())
    assert caught.value.fault.code == "base-missing"


def test_a_merge_output_that_lost_a_shard_is_not_published(tmp_path: Path, pico_base: Path) -> None:  # R1.3
    from transformers import AutoModelForCausalLM

    merged = tmp_path / "merged"
    AutoModelForCausalLM.from_pretrained(pico_base, dtype=torch.bfloat16).save_pretrained(merged, max_shard_size="60KB")
    index = json.loads((merged / "model.safetensors.index.json").read_text())
    moved = sorted(index["weight_map"])[0]
    index["weight_map"][moved] = sorted(set(index["weight_map"].values()) - {index["weight_map"][moved]})[0]
    (merged / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Permanent, match=f"not where the index says, for example {moved}"):
        pytorch.run(helpers.context(tmp_path / "pytorch", pico_base, pico_base, merge=merged), helpers.reporter())


def test_the_light_helpers_and_the_pytorch_stage_import_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, handlers.pytorch.stage, handlers.models.files, handlers.merge.stage; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_a_streaming_merge_imports_no_transformers(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from handlers.merge import merge_adapter; "
        "report = merge_adapter(*(Path(one) for one in sys.argv[1:])); print(report.strategy, 'transformers' in sys.modules)"
    )
    arguments = [sys.executable, "-c", code, str(pico_checkpoint), str(pico_base), str(tmp_path)]
    assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split() == ["streaming", "False"]


def test_tensors_that_share_memory_in_a_pickled_file_are_all_written(tmp_path: Path) -> None:
    from handlers.merge.full_finetune import place_weights
    from handlers.models.folder import ModelFolder

    source, output = tmp_path / "source", tmp_path / "output"
    source.mkdir()
    output.mkdir()
    one = torch.randn(8, 4)
    torch.save({"a.weight": one, "b.weight": one.T, "lm_head.weight": one}, source / "pytorch_model.bin")
    (source / "config.json").write_text('{"tie_word_embeddings": false}')
    place_weights(ModelFolder(source), output)
    written = helpers.stored(output)
    assert all(torch.equal(written[name], wanted) for name, wanted in {"a.weight": one, "b.weight": one.T, "lm_head.weight": one}.items())
