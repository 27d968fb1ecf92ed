"""The live model is what PEFT makes of the trainer's files: it shares no reading with the merge, and says what PEFT would leave unsaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.options import MergeOptions, ValidateOptions
from handlers.merge import merge_adapter
from handlers.merge.adapters import adapter as merges_reading
from handlers.merge.adapters.adapter import Adapter
from handlers.validate.checks.live.reference import LiveModel, measure
from handlers.validate.engines.adapters import packed_base
from handlers.validate.engines.pytorch.live import LiveEngine
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Load
from tests import models
from tests.merge import helpers, zoo
from tests.merge.adapters.test_methods import adapter_of
from tests.merge.experts import moe_zoo
from tests.merge.experts.test_moe import of_older_peft
from tests.validate.bench import Direct, beside_live, quiet
from tests.validate.conftest import LIMITS

WEIGHTS = "adapter_model.safetensors"


def live(pin: Path, base: Path) -> LiveEngine:
    return LiveEngine(EngineSpec(engine="live", folder=str(pin), base=str(base)))


def refused(pin: Path, base: Path) -> str:
    with pytest.raises(Permanent) as error:
        live(pin, base)
    assert error.value.fault.code == FaultCode.ADAPTER_NOT_LOADABLE
    return error.value.fault.cause


def checked(base: Path, pin: Path, merged: Path, scratch: Path) -> ArtifactCheck:
    """The verdict about a merged folder."""
    return beside_live(EngineSpec(engine="live", folder=str(pin), base=str(base)), merged, scratch, prompts=2, tokens=4)[0]


def scale_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Adapter.scale
    monkeypatch.setattr(Adapter, "scale", lambda self, module: 3 * plain(self, module))


def patterns_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges_reading, "first_keys", lambda *given: {})


@pytest.mark.parametrize("damage", [None, scale_of_three, patterns_lost])
def test_a_merge_that_reads_the_adapter_wrongly_is_rejected_since_the_reference_does_not_follow_it(
    damage: Any, pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"alpha_pattern": {"q_proj": 64, r"layers\.1\.mlp\..*": 48}}
    pin = helpers.make_adapter(pico_base, tmp_path / "pin", std=0.1, **options)
    if damage:
        damage(monkeypatch)
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, pico_base, tmp_path / "merged")
    check = checked(pico_base, pin, tmp_path / "merged", tmp_path / "scratch")
    assert check.verdict is (Verdict.FAILED if damage else Verdict.PASSED), check.reasons


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
def test_patterns_that_name_parameters_act_as_peft_lets_them_act(tmp_path: Path) -> None:
    base = zoo.make("qwen3-moe", tmp_path / "base", "float32")
    options = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    pin = zoo.adapt("qwen3-moe", base, tmp_path / "pin", alpha_pattern={"mlp.experts.gate_up_proj": 40}, **options)
    wanted = zoo.logits("qwen3-moe", zoo.attached("qwen3-moe", base, pin, "float32"))
    ids = np.arange(3, 19)[None]
    got = live(pin, base).step(ids, np.ones_like(ids), np.arange(16)[None], None)[0]
    assert np.abs(got - wanted.numpy()).max() < 1e-5
    helpers.edit_config(pin, alpha_pattern={})
    other = live(pin, base).step(ids, np.ones_like(ids), np.arange(16)[None], None)[0]
    assert np.abs(got - other).max() > 0.01


def older_experts(base: Path, pin: Path) -> Path:
    """An adapter over stacked experts that are not square, as PEFT before 0.19 saved it."""
    of_older_peft(moe_zoo.adapt("qwen3-moe", base, pin, **moe_zoo.ways("qwen3-moe")["parameters"]))
    return pin


@pytest.mark.parametrize("version", ["0.18.1", None])
def test_factors_of_experts_that_peft_saved_before_release_19_are_refused_with_the_reason(version: str | None, tmp_path: Path) -> None:
    base = moe_zoo.make("qwen3-moe", tmp_path / "base", "float32")
    pin = older_experts(base, tmp_path / "pin")
    helpers.edit_config(pin, peft_version=version)
    cause = refused(pin, base)
    assert (
        f"saved by PEFT {version or 'before 0.18'}, which laid out the factors of stacked experts" in cause and "size mismatch" not in cause
    )


def test_factors_of_experts_of_another_base_are_not_taken_for_those_of_an_older_peft(tmp_path: Path) -> None:
    pin = older_experts(moe_zoo.make("qwen3-moe", tmp_path / "base", "float32"), tmp_path / "pin")
    other = moe_zoo.make("qwen3-moe", tmp_path / "other", "float32", moe_intermediate_size=20)
    assert "size mismatch" in refused(pin, other)


def test_a_tensor_that_peft_would_leave_out_without_a_word_is_named(pico_base: Path, tmp_path: Path) -> None:
    pin = helpers.make_adapter(pico_base, tmp_path / "pin")

    def rename(tensors: dict[str, Any]) -> None:
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
        tensors[name.replace(".model.layers", "._orig_mod.model.layers")] = tensors.pop(name)

    helpers.rewrite(pin / WEIGHTS, rename)
    cause = refused(pin, pico_base)
    assert "base_model.model._orig_mod.model.layers.0.self_attn.q_proj.lora_B.weight" in cause and "has no place" in cause


def test_weights_that_the_configuration_names_and_the_file_lacks_are_told(pico_base: Path, tmp_path: Path) -> None:
    pin = helpers.make_adapter(pico_base, tmp_path / "pin")

    def drop(tensors: dict[str, Any]) -> None:
        for part in "AB":
            del tensors[f"base_model.model.model.layers.1.mlp.up_proj.lora_{part}.weight"]

    helpers.rewrite(pin / WEIGHTS, drop)
    (told,) = live(pin, pico_base).deviations
    assert "model.layers.1.mlp.up_proj.lora_A.default.weight" in told and "no weights for" in told


def test_vectors_that_all_layers_share_are_saved_once_and_are_not_missing(pico_base: Path, tmp_path: Path) -> None:
    from peft import VBLoRAConfig, get_peft_model

    base = transformers.AutoModelForCausalLM.from_pretrained(pico_base)
    config = VBLoRAConfig(r=2, num_vectors=8, vector_length=4, topk=2, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM")
    get_peft_model(cast(Any, base), config).save_pretrained(str(tmp_path))
    helpers.edit_config(tmp_path, base_model_name_or_path=str(pico_base))
    assert not live(tmp_path, pico_base).deviations


def test_what_peft_says_of_an_adapter_that_does_not_fit_is_one_sentence(pico_base: Path, tmp_path: Path) -> None:
    pin = helpers.make_adapter(pico_base, tmp_path / "pin")
    helpers.edit_config(pin, r=5)
    assert "size mismatch" in refused(pin, pico_base)
    helpers.edit_config(pin, target_modules=["nothing_of_this_name"])
    assert "nothing_of_this_name" in refused(pin, pico_base)


@pytest.mark.parametrize("kind", ["LORA", "LOHA"])
def test_the_live_model_is_rounded_as_peft_merges_into_a_base_of_16_bits(kind: str, tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "bfloat16")
    pin = adapter_of(kind, base, tmp_path / "pin")
    engine = live(pin, base)
    engine.merge("bfloat16", base)
    stock = zoo.attached("llama", base, pin, "bfloat16").merge_and_unload().state_dict()
    mine = {name.replace(".base_layer", ""): weight for name, weight in engine._plain().state_dict().items()}
    assert [name for name, weight in stock.items() if not torch.equal(mine[name], weight.float())] == []


def test_what_a_packed_base_does_not_pack_is_computed_in_fp32(tmp_path: Path) -> None:
    plain = zoo.make("phi", tmp_path / "plain", "float16")
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16)
    packed = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, dtype=torch.float16)
    packed.save_pretrained(tmp_path / "base")
    engine = live(zoo.adapt("phi", plain, tmp_path / "pin"), tmp_path / "base")
    kinds = {(type(weight).__name__, weight.dtype) for weight in engine._plain().parameters()}
    assert kinds == {("Params4bit", torch.uint8), ("Parameter", torch.float32)}


def test_a_packed_base_says_the_same_on_every_processor(tmp_path: Path) -> None:
    """With AVX-512 BF16 bitsandbytes turns weights around at the first pass, and DoRA, which computes with them, reads them wrong."""
    from peft import PeftModel

    plain = models.make_base(tmp_path / "plain")
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    packed = transformers.AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, dtype=torch.bfloat16)
    packed.save_pretrained(tmp_path / "base")
    pin = helpers.make_adapter(plain, tmp_path / "pin", use_dora=True)
    engine = live(pin, tmp_path / "base")
    unpacked = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").dequantize().float()
    stock = PeftModel.from_pretrained(unpacked, pin).eval()
    ids = torch.arange(2, 34)[None]
    for _ in range(2):  # the second pass meets what the first one left
        with torch.no_grad():
            mine, theirs = (model(input_ids=ids).logits for model in (engine._model, stock))
        assert (mine - theirs).abs().max() < 0.1 * theirs.std()  # stock rounds what it unpacks to bf16


@pytest.mark.parametrize("damage", [None, scale_of_three])
def test_a_base_stored_in_int8_is_unpacked_by_transformers_and_its_merge_compared_without_rounded_inputs(
    damage: Any, pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = transformers.BitsAndBytesConfig(load_in_8bit=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(pico_base, quantization_config=settings, dtype=torch.float16)
    loaded.save_pretrained(tmp_path / "base")
    pin = helpers.make_adapter(pico_base, tmp_path / "pin", std=0.1)
    engine = live(pin, tmp_path / "base")
    layers = [module for module in engine._plain().modules() if type(module).__name__ == "Linear8bitLt"]
    assert layers == [] and engine.deviations == (packed_base.UNROUNDED,)
    if damage:
        damage(monkeypatch)
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, tmp_path / "base", tmp_path / "merged")
    check = checked(tmp_path / "base", pin, tmp_path / "merged", tmp_path / "scratch")
    assert check.verdict is (Verdict.FAILED if damage else Verdict.PASSED), check.reasons
    assert damage or check.figures["kl"] < 1e-4


def resize(base: Path, folder: Path, family: str, rows: int, **options: Any) -> Any:
    """An adapter of a base that was resized, and the model that was trained."""
    from peft import LoraConfig, get_peft_model

    model = zoo.load(family, base, "float32")
    torch.manual_seed(11)
    model.resize_token_embeddings(rows, mean_resizing=False)
    wrapped = get_peft_model(model, LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **options})).eval()
    zoo.randomize(wrapped)
    wrapped.save_pretrained(folder)
    return wrapped


ADDED = zoo.VOCABULARY + 8
SOUND: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen3", {"modules_to_save": ["embed_tokens"]}),
    ("llama", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    ("llama", {"modules_to_save": ["embed_tokens", "lm_head"]}),
    ("qwen3", {"target_modules": ["q_proj", "embed_tokens"]}),
    ("qwen3", {"trainable_token_indices": [zoo.VOCABULARY, zoo.VOCABULARY + 5]}),
]


@pytest.mark.parametrize(("family", "options"), SOUND, ids=str)
def test_a_resized_vocabulary_is_told_and_loaded_from_the_adapters_file(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    base = zoo.make(family, tmp_path / "base", "float32")
    trained = resize(base, tmp_path / "pin", family, ADDED, **options)
    engine = live(tmp_path / "pin", base)
    (told,) = engine.deviations
    assert told.startswith(f"The base has {zoo.VOCABULARY} tokens and the adapter's embeddings {ADDED}")
    ids = np.arange(ADDED - 16, ADDED)[None]
    with torch.inference_mode():
        wanted = trained(input_ids=torch.tensor(ids)).logits.numpy()
    got = engine.step(ids, np.ones_like(ids), np.arange(16)[None], None)[0]
    assert np.abs(got - wanted[:, -got.shape[1] :]).max() < 1e-4


def test_rows_that_no_file_holds_are_the_same_in_the_merge_and_in_the_live_model(tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "float32")
    resize(base, tmp_path / "pin", "llama", ADDED, target_modules=["q_proj", "embed_tokens"])
    (tmp_path / "merged").mkdir()
    merge_adapter(tmp_path / "pin", base, tmp_path / "merged", MergeOptions(fill_rows=True))
    head = zoo.load("llama", tmp_path / "merged", "float32").get_output_embeddings().weight[-8:]
    known = zoo.load("llama", base, "float32").get_output_embeddings().weight.mean(dim=0)
    assert torch.allclose(head, known.expand(8, -1), atol=1e-6)
    engine, ids = live(tmp_path / "pin", base), np.arange(ADDED - 16, ADDED)[None]
    got = engine.step(ids, np.ones_like(ids), np.arange(16)[None], None)[0]
    with torch.inference_mode():
        wanted = zoo.load("llama", tmp_path / "merged", "float32")(input_ids=torch.tensor(ids)).logits.numpy()
    assert np.abs(got - wanted).max() < 1e-4


def test_an_adapter_in_a_bin_file_is_read_as_one_in_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    base = zoo.make("llama", tmp_path / "base", "float32")
    resize(base, tmp_path / "pin", "llama", ADDED, modules_to_save=["embed_tokens", "lm_head"])
    plain = live(tmp_path / "pin", base)
    torch.save(load_file(tmp_path / "pin" / WEIGHTS), tmp_path / "pin" / "adapter_model.bin")
    (tmp_path / "pin" / WEIGHTS).unlink()
    pickled = live(tmp_path / "pin", base)
    assert pickled.deviations == plain.deviations
    ids = np.arange(ADDED - 16, ADDED)[None]
    rows = [engine.step(ids, np.ones_like(ids), np.arange(16)[None], None)[0] for engine in (plain, pickled)]
    np.testing.assert_array_equal(*rows)


MADE_UP: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"target_modules": ["q_proj", "embed_tokens"]}, "lm_head.weight has 8 rows that no file holds (96 to 103)"),
    ("llama", {"target_modules": ["q_proj", "lm_head"]}, "model.embed_tokens.weight has 8 rows that no file holds (96 to 103)"),
]


@pytest.mark.parametrize(("family", "options", "said"), MADE_UP, ids=str)
def test_rows_that_are_made_up_when_the_model_is_loaded_are_named(family: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    base = zoo.make(family, tmp_path / "base", "float32")
    resize(base, tmp_path / "pin", family, ADDED, **options)
    engine = live(tmp_path / "pin", base)
    assert len(engine.deviations) == 2 and engine.deviations[1].startswith(said)
    ids = np.arange(16)[None]
    assert np.isfinite(engine.step(ids, np.ones_like(ids), np.arange(16)[None], None)[0]).all()


def test_what_was_found_while_loading_is_a_warning_of_the_reference(tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "float32")
    resize(base, tmp_path / "pin", "llama", ADDED, target_modules=["q_proj", "embed_tokens"])
    worker = cast(EngineWorker, Direct("live", EngineSpec(engine="live", folder=str(tmp_path / "pin"), base=str(base))))
    options = ValidateOptions(samples=1, new_tokens=2, speed_tokens=0)
    reference = measure(LiveModel(worker), ["return"], options, tmp_path, quiet)
    assert [one for one in reference.warnings if "lm_head.weight has 8 rows that no file holds" in one]


@pytest.mark.slow
def test_a_pattern_at_which_peft_hangs_ends_with_the_workers_deadline(pico_base: Path, tmp_path: Path) -> None:
    pin = helpers.make_adapter(pico_base, tmp_path / "pin")
    config = json.loads((pin / "adapter_config.json").read_text())
    (pin / "adapter_config.json").write_text(json.dumps({**config, "rank_pattern": {r"(([a-z_.0-9]+)*)*!": 4}}))
    spec = EngineSpec(engine="live", folder=str(pin), base=str(pico_base))
    hang = pytest.raises(WorkerFailed, match="gave no answer to `load` within 30 s and was ended")
    with EngineWorker("live", spec, tmp_path, LIMITS) as worker, hang:
        worker.ask(Load(), limit=30)
