"""The live model stands on the base that was merged into, and the samples tell which base an adapter learnt against."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, StageContext, Verdict
from daemon.contract.jobs.options import ExportOptions, MergeOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import spec_of
from daemon.journal.rows import JobRow
from daemon.running.rules.resume_keys import stage_key
from handlers.child.progress import Reporter
from handlers.merge import merge_adapter
from handlers.validate import merged
from handlers.validate import reference as reference_stage
from handlers.validate.checks.live import base_likelihood
from handlers.validate.checks.live.reference import LiveModel, Reference, measure
from handlers.validate.engines.registry import EngineSpec, base_values
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import A, Encode, Rebase, Request, Teacher
from tests import models
from tests.merge import helpers
from tests.validate import zoo
from tests.validate.bench import Direct, beside_live, quiet
from tests.validate.conftest import LIMITS


def live_worker(base: Path, pin: Path) -> EngineWorker:
    """A worker in this process with base + adapter; nothing is loaded yet."""
    return cast(EngineWorker, Direct("live", EngineSpec(engine="live", folder=str(pin), base=str(base))))


def merged_check(base: Path, pin: Path, merged: Path, scratch: Path, *, live_on: str) -> ArtifactCheck:
    """The verdict about a merged folder where the live model stands on the base `live_on`."""
    return beside_live(EngineSpec(engine="live", folder=str(pin), base=str(base)), merged, scratch, live_on=live_on)[0]


def qwen3(root: Path) -> tuple[Path, Path]:
    """A base in bf16 and an adapter."""
    base = models.make_base(root / "base")
    return base, helpers.make_adapter(base, root / "pin")


def qwen3_dora(root: Path) -> tuple[Path, Path]:
    """A base in fp16 and an adapter whose effect depends on the norm of the base's rows."""
    base = models.make_base(root / "base", dtype="float16")
    return base, helpers.make_adapter(base, root / "pin", use_dora=True)


def strip_prefix(table: dict[str, Any]) -> None:
    """Leave "transformer." out of the names of a table of tensors."""
    for name in list(table):
        table[name.removeprefix("transformer.")] = table.pop(name)


def gpt2(root: Path) -> tuple[Path, Path]:
    """A base in fp32 whose layers lie as (in, out), under the names of its body alone as the first releases did, and an adapter."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 320, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 96}
    config = GPT2Config(**sizes, initializer_range=0.15, bos_token_id=1, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(root / "base")
    models.make_tokenizer().save_pretrained(root / "base")
    helpers.rewrite(root / "base" / "model.safetensors", strip_prefix)
    targets = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
    return root / "base", helpers.make_adapter(root / "base", root / "pin", **targets)


def classifier(root: Path) -> tuple[Path, Path]:
    """A masked language model, and an adapter that brings a classifier's head: live it is loaded as another class than its files name."""
    from transformers import AutoModelForSequenceClassification

    base = zoo.make_encoder_base(root / "base", "AutoModelForMaskedLM")
    options = {"target_modules": ["query", "value"], "task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]}
    return base, helpers.make_adapter(base, root / "pin", cls=AutoModelForSequenceClassification, **options)


@pytest.mark.parametrize(
    ("make", "values"), [(qwen3, "dequantized-double"), *((make, "dequantized") for make in (qwen3, qwen3_dora, gpt2, classifier))]
)
def test_a_model_merged_into_the_base_of_a_qlora_training_equals_the_live_model_on_that_base_and_no_other(
    make: Callable[[Path], tuple[Path, Path]], values: str, tmp_path: Path
) -> None:
    base, pin = make(tmp_path)
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, base, tmp_path / "merged", MergeOptions(dtype="float32", base=values))
    same = merged_check(base, pin, tmp_path / "merged", tmp_path / "same", live_on=values)
    assert same.verdict is Verdict.PASSED, same.reasons
    # For the CPU bitsandbytes rounds about one of 500 scales of scales to the neighbour of what a GPU, and so the merge, takes.
    assert same.figures["error_max"] < (1e-3 if values == "dequantized" else 2e-2)
    if values == "dequantized":
        other = merged_check(base, pin, tmp_path / "merged", tmp_path / "other", live_on="original")
        assert other.figures["error_max"] > 0.05
        assert other.verdict is Verdict.FAILED


def test_the_live_model_goes_back_to_the_stored_base(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    live = live_worker(pico_base, pico_checkpoint)
    live.load()
    ids = live.ask(Encode(texts=models.TEXTS[:1])).ids[0]
    rows = []
    for number, values in enumerate([None, "dequantized", "dequantized-double", "original"]):
        if values:
            assert live.ask(Rebase(values=values)).tensors == 14
        live.ask(Teacher(ids=ids, keep=list(range(len(ids))), out=str(tmp_path / f"{number}.npy")))
        rows.append(np.load(tmp_path / f"{number}.npy"))
    assert np.array_equal(rows[0], rows[3])
    assert all(np.abs(rows[one] - rows[other]).max() > 0.01 for one, other in [(0, 1), (0, 2), (1, 2)])


@pytest.mark.parametrize("values", ["dequantized", "dequantized-double"])
def test_the_base_is_what_transformers_and_bitsandbytes_make_of_it_in_4_bits(values: str, pico_checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = models.make_base(tmp_path / "base")
    double = values == "dequantized-double"
    settings: Any = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double)
    stock: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, quantization_config=settings)
    wanted = stock.dequantize(torch.bfloat16).state_dict()
    live = Direct("live", EngineSpec(engine="live", folder=str(pico_checkpoint), base=str(base)))
    live.load()
    live.ask(Rebase(values=values))
    model = live._commands._engine._model.get_base_model()
    for name, value in model.named_parameters():
        if ".lora_" not in name:
            assert torch.equal(value, wanted[name.replace(".base_layer", "")].float()), name


def train(base: Path, pin: Path, *, packed: bool) -> Path:
    """An adapter trained until it has learnt TEXTS, on the base as it is stored or as bitsandbytes' own 4 bits leave it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    settings: Any = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    loaded: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, quantization_config=settings if packed else None)
    torch.manual_seed(5)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=helpers.ALL_LINEAR, task_type="CAUSAL_LM")
    model: Any = get_peft_model((loaded.dequantize() if packed else loaded).float(), config)
    tokenizer = AutoTokenizer.from_pretrained(base)
    batch = tokenizer(models.TEXTS, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(pin)
    return pin


@pytest.fixture(scope="session")
def trained(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the base was while an adapter was trained → the adapter. Read only."""
    root = tmp_path_factory.mktemp("trained")
    return {name: train(pico_base, root / name, packed=name == "dequantized") for name in ("original", "dequantized")}


def context_of(
    base: Path | None, pin: Path, root: Path, *, chosen: str, inputs: dict[str, str] | None = None, **options: Any
) -> StageContext:
    """A job's context for the stage, with six of the run's own texts as prompts."""
    root.mkdir(exist_ok=True)
    (root / "prompts.txt").write_text("\n".join(text.replace("\n", " ") for text in models.TEXTS) + "\n")
    settings = {"samples": 6, "new_tokens": 4, "speed_tokens": 0, "prompts": str(root / "prompts.txt"), **options}
    return StageContext(
        job="job", stage="validate", attempt=1, pin=str(pin), base=str(base) if base else None, inputs=inputs or {},
        checkpoint=CheckpointRef(root="/runs", run="pico", step=4, path=str(pin), layout="trainer-adapter", digest="0", method="LORA"),
        staging=str(root / "staging"), result=str(root / "result.json"), temporary=str(root / "temporary"), cache=str(root / "cache"),
        limits=LIMITS, work=Work(export=ExportOptions(), validation=ValidateOptions(**settings), merge=MergeOptions(base=chosen)),
    )  # fmt: skip


def compared(base: Path, pin: Path, root: Path, chosen: str, texts: list[str] = models.TEXTS, **options: Any) -> tuple[Any, Reference]:
    """The figures of the comparison, and the reference that it was made from."""
    context = context_of(base, pin, root, chosen=chosen, **options)
    live = live_worker(base, pin)
    reference = measure(LiveModel(live, base_values=base_values(context)), texts, context.work.validation, root, quiet)
    return base_likelihood.compare(live, reference, context, root, quiet), reference


@pytest.mark.parametrize(("learnt", "chosen"), [("original", "original"), ("original", "dequantized"), ("dequantized", "original")])
def test_the_base_that_an_adapter_learnt_against_fits_its_own_data_best(
    learnt: str, chosen: str, trained: dict[str, Path], pico_base: Path, tmp_path: Path
) -> None:
    figures, reference = compared(pico_base, trained[learnt], tmp_path, chosen, bases=True)
    # With double quantization the base is almost the same: which of the two is ahead may depend on rounding in the training.
    assert figures.chosen == chosen and figures.best.removesuffix("-double") == learnt
    assert min(base_likelihood.VALUES[:2], key=figures.nll.__getitem__) == learnt
    assert figures.nll.keys() == set(base_likelihood.VALUES) and figures.error.keys() == figures.kl.keys() == set(
        base_likelihood.VALUES
    ) - {chosen}
    assert figures.tokens == sum(len(sample.ids) - 1 for sample in reference.samples)
    assert all(value > 0 for value in figures.kl.values())
    said = [warning for warning in reference.warnings if f'To merge into that base, set merge.base = "{figures.best}"' in warning]
    assert len(said) == len(reference.warnings) == (learnt != chosen)
    assert not any("built-in" in warning for warning in said)


def test_the_likelihood_is_that_of_the_next_token_of_the_text(trained: dict[str, Path], pico_base: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    figures, reference = compared(pico_base, trained["original"], tmp_path, "original", models.TEXTS[:2], bases=True)
    base: Any = AutoModelForCausalLM.from_pretrained(pico_base, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(trained["original"])).eval()
    total, count = 0.0, 0
    for sample in reference.samples:
        ids = torch.tensor([sample.ids])
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=ids).loss) * (len(sample.ids) - 1)
        count += len(sample.ids) - 1
    assert figures.nll["original"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize(
    ("chosen", "options", "skipped"),
    [("original", {}, None), ("original", {"bases": True}, "initializer")],
)
def test_nothing_is_compared_that_nobody_asked_for_or_that_could_not_be_merged(
    chosen: str, options: dict[str, Any], skipped: str | None, pico_base: Path, tmp_path: Path
) -> None:
    pin = helpers.make_adapter(pico_base, tmp_path / "pin")
    helpers.edit_config(pin, init_lora_weights="olora")
    figures, reference = compared(pico_base, pin, tmp_path / "job", chosen, models.TEXTS[:1], **options)
    assert (figures is None) == (skipped is None)
    if skipped:
        assert figures.chosen == chosen and skipped in figures.skipped and not figures.has("nll")
    assert any("were not compared" in warning for warning in reference.warnings) == bool(options)


def test_an_adapter_that_changed_the_base_while_it_was_loaded_is_put_on_no_other(pico_base: Path, tmp_path: Path) -> None:
    pin = helpers.make_adapter(pico_base, tmp_path / "pin")
    helpers.edit_config(pin, init_lora_weights="olora")
    with pytest.raises(WorkerFailed, match="its initializer changed") as failed:
        compared(pico_base, pin, tmp_path / "job", "dequantized", models.TEXTS[:1])
    assert failed.value.code == "unknown-layout" and 'merge.base to "original"' in failed.value.remedy


def test_what_was_measured_on_one_base_is_not_taken_for_another(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    keys = set()
    for chosen in base_likelihood.VALUES:
        context = context_of(pico_base, pico_checkpoint, tmp_path, chosen=chosen)
        job = JobRow("job", "running", context.checkpoint, context.work, pico_checkpoint, tmp_path, pico_base, "now", None, None)
        keys.add(stage_key(spec_of("reference"), job, {}, None, "cpu"))
    assert len(keys) == 3


def test_a_base_that_is_stored_quantized_has_one_form(pico_base: Path, tmp_path: Path) -> None:
    import shutil

    base = Path(shutil.copytree(pico_base, tmp_path / "base"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}}))
    assert base_values(context_of(base, tmp_path, tmp_path / "job", chosen="dequantized")) == "original"
    assert base_values(context_of(pico_base, tmp_path, tmp_path / "job", chosen="dequantized")) == "dequantized"
    assert base_values(context_of(None, tmp_path, tmp_path / "job", chosen="dequantized")) == "original"


def test_a_worker_that_fails_while_comparing_costs_the_comparison_alone(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    class Failing(Direct):
        def ask(self, request: Request[A]) -> A:
            if isinstance(request, Rebase):
                raise WorkerFailed("it ran out of memory", "", transient=True)
            return super().ask(request)

    context = context_of(pico_base, pico_checkpoint, tmp_path, chosen="original", bases=True)
    live = cast(EngineWorker, Failing("live", EngineSpec(engine="live", folder=str(pico_checkpoint), base=str(pico_base))))
    reference = measure(LiveModel(live), models.TEXTS[:1], context.work.validation, tmp_path, quiet)
    found = base_likelihood.compare(live, reference, context, tmp_path, quiet)
    assert found is not None and found.written() == {"chosen": "original", "skipped": "it ran out of memory"}
    assert any("it ran out of memory" in warning for warning in reference.warnings)


@pytest.mark.parametrize(("shift", "spread", "warned"), [(0.1, 0.1, True), (0.1, 1.0, False), (-0.1, 0.1, False)])
def test_another_base_is_recommended_only_where_it_is_better_beyond_the_error(shift: float, spread: float, warned: bool) -> None:
    noise = np.random.default_rng(0).normal(size=400)
    losses = {"original": 2 + noise, "dequantized": 2 + noise - shift + spread * np.resize([1.0, -1.0], 400)}
    figures = base_likelihood.summary("original", losses, {})
    warning = base_likelihood.better(figures, own=False)
    assert bool(warning) == warned
    if warning:
        assert "set validate.prompts" in warning and "400 tokens" in warning


@pytest.mark.slow
def test_the_stage_passes_a_model_that_was_merged_as_configured_and_writes_what_it_compared(
    trained: dict[str, Path], pico_base: Path, tmp_path: Path
) -> None:
    (tmp_path / "merged").mkdir()
    pin = trained["dequantized"]
    merge_adapter(pin, pico_base, tmp_path / "merged", MergeOptions(base="dequantized"))
    models.make_tokenizer().save_pretrained(tmp_path / "merged")
    inputs = {"merge": str(tmp_path / "merged"), "pytorch": str(tmp_path / "merged")}
    context = context_of(pico_base, pin, tmp_path / "job", chosen="dequantized", inputs=inputs)
    models.make_tokenizer().save_pretrained(pin)
    Path(context.staging).mkdir()
    Path(context.temporary).mkdir()
    output = reference_stage.run(context, Reporter(io.StringIO()))
    found = output.figures["bases"]
    assert (found["chosen"], found["best"]) == ("dequantized", "dequantized")
    assert output.figures["reference"]["method"].endswith("on the dequantized base")
    assert json.loads(Path(context.staging, "reference.json").read_text())["bases"] == found
    later = context.model_copy(update={"inputs": {**inputs, "reference": context.staging}, "staging": str(tmp_path / "merged-check")})
    Path(later.staging).mkdir()
    (check,) = merged.run(later, Reporter(io.StringIO())).checks
    assert check.verdict is Verdict.PASSED, check.reasons
