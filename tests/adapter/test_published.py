"""A published adapter answers as the live model does, whatever PEFT can save, and what is damaged in it fails the check."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Verdict
from handlers.adapter import stage
from handlers.validate.engines.registry import EngineSpec
from tests.adapter.publishing import Published, publish, run
from tests.formats.test_declared_files import uncovered
from tests.merge import helpers
from tests.sampling import some
from tests.validate import zoo
from tests.validate.test_encoders import classify

ATTENTION = ["q_proj", "v_proj"]
LORA: dict[str, dict[str, Any]] = {
    "lora": {},
    "rslora": {"use_rslora": True, "r": 8},
    "dora": {"use_dora": True, "target_modules": ATTENTION},
    "patterns": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 6}, "alpha_pattern": {"v_proj": 40, "q_proj": 3}},
    "saved head": {"modules_to_save": ["lm_head"], "target_modules": ATTENTION},
    "trained tokens": {"trainable_token_indices": {"embed_tokens": [3, 5, 9, 60, 61]}, "target_modules": ATTENTION},
    "embeddings": {"target_modules": [*ATTENTION, "embed_tokens"]},
    "some layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "pissa": {"init_lora_weights": "pissa"},
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adalora": ("AdaLoraConfig", {"target_r": 3, "init_r": 4, "total_step": 10, "target_modules": ATTENTION}),
    "ia3": ("IA3Config", {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "loha": ("LoHaConfig", {"r": 3, "target_modules": ATTENTION}),
    "vera": ("VeraConfig", {"r": 8, "target_modules": ["q_proj"]}),
    "vera without its projections": ("VeraConfig", {"r": 8, "target_modules": ["q_proj"], "save_projection": False}),
}


def other_method(base: Path, folder: Path, name: str) -> Path:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    config, options = OTHERS[name]
    torch.manual_seed(4)
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), getattr(peft, config)(task_type="CAUSAL_LM", **options)
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def published(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Published]:
    """Publishes an adapter of one of the kinds above, once. Read only."""
    made: dict[str, Published] = {}

    def one(name: str) -> Published:
        if name not in made:
            root = tmp_path_factory.mktemp("published")
            if name in OTHERS:
                adapter = other_method(pico_base, root / "adapter", name)
            else:
                adapter = helpers.make_adapter(pico_base, root / "adapter", **LORA[name])
            made[name] = publish(adapter, pico_base, root)
        return made[name]

    return one


def tensors(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name → dtype, shape and bytes of each tensor of a file."""
    from daemon.contract.models.safetensors import read_header

    data = file.read_bytes()
    return {name: (info.dtype, info.shape, data[info.start : info.end]) for name, info in read_header(file).items()}


@pytest.mark.parametrize("name", some([*LORA, *OTHERS], of=4))
def test_what_peft_saves_is_published_bit_by_bit_and_answers_as_the_live_model(name: str, published: Callable[[str], Published]) -> None:
    one = published(name)
    assert one.bench.reference.adapter is not None and (one.bench.reference.adapter.error_max or 0) > 0.05, "the adapter must be seen"
    check = one.check()
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["agreement"] == 1.0 and check.figures["error_max"] == 0.0
    assert check.figures["cache_error_max_absolute"] is not None and check.figures["padding_error_max_absolute"] is not None
    assert tensors(one.folder / "adapter_model.safetensors") == tensors(one.adapter / "adapter_model.safetensors")


@pytest.mark.parametrize(("name", "lost"), [("rslora", "use_rslora"), ("patterns", "alpha_pattern"), ("lora", "lora_alpha")])
def test_a_key_that_is_lost_in_publishing_fails_the_check(
    name: str, lost: str, published: Callable[[str], Published], tmp_path: Path
) -> None:
    one = published(name)
    folder = tmp_path / "damaged"
    shutil.copytree(one.folder, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    del config[lost]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert one.check(folder).verdict is Verdict.FAILED


def test_a_tensor_that_is_changed_or_lost_in_publishing_fails_the_check(published: Callable[[str], Published], tmp_path: Path) -> None:
    one = published("lora")
    for name, change in (("changed", lambda table, key: table[key].mul_(1.01)), ("lost", lambda table, key: table.pop(key))):
        folder = tmp_path / name
        shutil.copytree(one.folder, folder)

        def damage(table: Any, change: Any = change) -> None:
            change(table, next(key for key in sorted(table) if "down_proj.lora_B" in key))

        helpers.rewrite(folder / "adapter_model.safetensors", damage)
        assert one.check(folder).verdict is Verdict.FAILED


def test_the_folder_holds_what_servers_read_and_nothing_else(published: Callable[[str], Published]) -> None:
    folder = published("lora").folder
    assert uncovered("pytorch-adapter", folder) == []
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "adapter_base.json", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", framework="pt") as stream:
        assert stream.metadata() == {"format": "pt"}


def test_a_pickled_adapter_becomes_safetensors_with_the_same_values(pico_base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    table = load_file(adapter / "adapter_model.safetensors")
    first, second = sorted(key for key in table if "lora_A" in key and "q_proj" in key)
    table[second] = table[first]  # one memory under two names, as a pickle may have it
    torch.save(table, adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    one = publish(adapter, pico_base, tmp_path / "work")
    assert one.check().verdict is Verdict.PASSED
    assert not list(one.folder.glob("*.bin"))
    written = load_file(one.folder / "adapter_model.safetensors")
    assert written.keys() == table.keys() and all(torch.equal(written[key], table[key]) for key in table)


def test_a_file_without_the_metadata_that_readers_ask_for_gets_it(pico_base: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    save_file(load_file(file), file)
    one = publish(adapter, pico_base, tmp_path / "work")
    with safe_open(one.folder / file.name, framework="pt") as stream:
        assert stream.metadata() == {"format": "pt"}
    assert tensors(one.folder / file.name) == tensors(file)


def test_a_rewritten_checkpoint_does_not_reach_what_is_published(published: Callable[[str], Published]) -> None:
    one = published("lora")
    status = (one.folder / "adapter_model.safetensors").stat()
    assert status.st_nlink == 1 and status.st_ino != (one.adapter / "adapter_model.safetensors").stat().st_ino


def test_the_checkpoints_own_tokenizer_and_template_go_along(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    one = publish(pico_checkpoint, pico_base, tmp_path)
    names = {path.name for path in one.folder.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    assert not names & {"trainer_state.json", "optimizer.pt", "training_args.bin", "config.json"}
    assert one.output.figures["tokenizer"] is True and one.check().verdict is Verdict.PASSED


def test_an_adapter_that_brings_a_head_is_published_with_it(tmp_path: Path) -> None:
    base = zoo.make_encoder_base(tmp_path / "base", "AutoModelForMaskedLM")
    adapter = zoo.train_adapter(
        base, tmp_path / "adapter", "AutoModelForSequenceClassification", classify, load={"num_labels": 3},
        target_modules=["query", "value"], task_type="SEQ_CLS", modules_to_save=["pooler", "classifier"],
    )  # fmt: skip
    one = publish(adapter, base, tmp_path / "work")
    check = one.check()
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["task"] == "text-classification" and one.output.figures["labels"] == 3


@pytest.mark.slow
def test_an_encoder_decoders_adapter_is_published(tmp_path: Path) -> None:
    base = zoo.make_seq2seq_base(tmp_path / "base", "t5")
    adapter = zoo.train_adapter(
        base, tmp_path / "adapter", "AutoModelForSeq2SeqLM", zoo.copying, target_modules=["q", "v", "wo"], task_type="SEQ_2_SEQ_LM"
    )
    one = publish(adapter, base, tmp_path / "work")
    check = one.check()
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["error_max"] == 0.0


def test_added_tokens_go_along_with_the_embeddings_that_were_saved_for_them(pico_base: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pico_base)
    tokenizer.add_tokens(["<one>", "<two>"])
    model = AutoModelForCausalLM.from_pretrained(pico_base, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=ATTENTION, task_type="CAUSAL_LM"))
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    one = publish(tmp_path / "adapter", pico_base, tmp_path / "work")
    assert one.check().verdict is Verdict.PASSED
    assert one.output.figures["vocabulary"] == len(tokenizer)


def test_it_is_checked_on_the_base_that_was_merged_into(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    from handlers.adapter.engine import AdapterEngine
    from handlers.validate.engines.pytorch.live import LiveEngine

    one = publish(pico_checkpoint, pico_base, tmp_path)
    assert one.check(values="dequantized").verdict is Verdict.FAILED, "another base gives other answers"
    live = LiveEngine(EngineSpec(engine="live", folder=str(pico_checkpoint), base=str(pico_base)))
    live.rebase("dequantized")
    alone = AdapterEngine(EngineSpec(engine="adapter", folder=str(one.folder), base=str(pico_base), base_values="dequantized"))
    ids = np.arange(2, 34)[None]
    rows = [engine.step(ids, np.ones_like(ids), np.arange(32)[None], None)[0] for engine in (live, alone)]
    assert np.array_equal(*rows)
    folder, output = run(pico_checkpoint, pico_base, one.merged, tmp_path / "again", base="dequantized")
    assert json.loads((folder / "adapter_base.json").read_text())["values"] == "dequantized"
    assert output.figures["base_values"] == "dequantized"


def test_a_full_fine_tune_is_refused_with_a_sentence(pico_base: Path, tmp_path: Path) -> None:
    context = helpers.context(tmp_path, pico_base, None, method="full", merge=pico_base)
    with pytest.raises(Permanent) as raised:
        stage.run(context, helpers.reporter())
    assert raised.value.fault.code == FaultCode.NO_ADAPTER
    assert "the checkpoint is a full fine-tune, which has no adapter" in raised.value.fault.sentence()
