"""pytorch-fp16 and pytorch-bf16: every weight rounded once, in files as transformers writes them, in memory that does not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.fallbacks import way_down
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.options import ValidateOptions
from handlers.validate.verdict import unrunnable
from handlers.validate.workers.client import WorkerFailed
from tests import models
from tests.merge import helpers
from tests.pytorch.forms import loaded, make
from tests.sampling import some
from tests.validate import zoo
from tests.validate.bench import Bench, measured

HALVES = {"pytorch-fp16": "float16", "pytorch-bf16": "bfloat16"}


@pytest.mark.parametrize("variant", HALVES)
def test_every_weight_is_rounded_once_and_the_folder_says_the_dtype(variant: str, tmp_path: Path) -> None:
    import torch

    dtype = getattr(torch, HALVES[variant])
    source = models.make_base(tmp_path / "model", dtype="float32")
    helpers.rewrite(source / "model.safetensors", lambda table: table.update({"counter": torch.arange(3)}))
    folder, output = make(variant, source, tmp_path / "work")
    before, after = helpers.stored(source), helpers.stored(folder)
    assert after.keys() == before.keys() and torch.equal(after.pop("counter"), before.pop("counter"))
    assert all(torch.equal(after[name], before[name].to(dtype)) for name in before)
    assert json.loads((folder / "config.json").read_text())["dtype"] == HALVES[variant]
    assert (folder / "tokenizer.json").is_file() and (folder / "chat_template.jinja").is_file()
    assert output.figures["converted_weights"] == sum(one.numel() for one in before.values())
    assert not output.warnings


def test_transformers_loads_the_folder_in_its_dtype_with_the_weights_still_tied(live: Bench, tmp_path: Path) -> None:
    import torch

    folder, _ = make("pytorch-fp16", live.merged, tmp_path)
    model = loaded(folder)
    assert model.dtype == torch.float16 and model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in helpers.stored(folder)


@pytest.mark.parametrize("variant", some(list(HALVES), 2))
def test_the_folder_answers_as_the_live_model_does_and_a_damaged_one_does_not(variant: str, live: Bench, tmp_path: Path) -> None:
    folder, _ = make(variant, live.merged, tmp_path)
    check = live.check(variant, folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["error_max"] > 0, "it was computed in the folder's own dtype, not in fp32"
    assert check.figures["cache_error_max_absolute"] is not None and check.figures["padding_error_max_absolute"] is not None
    helpers.rewrite(folder / "model.safetensors", lambda table: table["model.layers.1.mlp.up_proj.weight"].mul_(1.5))
    assert live.check(variant, folder).verdict is Verdict.FAILED


def test_a_weight_beyond_fp16_is_refused_by_its_name_and_bf16_takes_it(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model", dtype="float32")
    name = "model.layers.1.mlp.up_proj.weight"
    helpers.rewrite(source / "model.safetensors", lambda table: table[name].view(-1)[77].fill_(-7e4))
    with pytest.raises(Permanent) as raised:
        make("pytorch-fp16", source, tmp_path / "fp16")
    assert raised.value.fault.code == FaultCode.DTYPE_OVERFLOW
    said = raised.value.fault.sentence()
    assert f"write {name} as float16" in said and "it holds -70000, and the largest float16 value is 65504" in said
    assert "use pytorch-bf16" in said
    make("pytorch-bf16", source, tmp_path / "bf16")


def test_activations_that_leave_fp16_fail_its_check_so_that_bf16_takes_its_place(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model", dtype="float32")

    def stretch(table: dict[str, Any]) -> None:
        """The same model: what goes into the last product is 20,000 times as large, and what that multiplies with as small."""
        for layer in (0, 1):
            table[f"model.layers.{layer}.mlp.up_proj.weight"].mul_(20_000)
            table[f"model.layers.{layer}.mlp.down_proj.weight"].div_(20_000)

    helpers.rewrite(source / "model.safetensors", stretch)
    bench = measured(source, None, source, tmp_path / "scratch")
    folder, _ = make("pytorch-fp16", source, tmp_path / "fp16")
    with pytest.raises(WorkerFailed) as raised:
        bench.check("pytorch-fp16", folder)
    failed = unrunnable("pytorch-fp16", raised.value)
    assert failed.reasons == ("it could not be run: its logits hold values that are not finite",)
    down = way_down(["pytorch-fp16"], {"pytorch-fp16": failed}, {}, ValidateOptions())
    assert [step.taken for step in down.steps] == ["pytorch-bf16"]
    assert bench.check("pytorch-bf16", make("pytorch-bf16", source, tmp_path / "bf16")[0]).verdict is Verdict.PASSED


def test_a_model_that_is_stored_so_already_is_said_to_be_the_same(live: Bench, tmp_path: Path) -> None:
    _, output = make("pytorch-bf16", live.merged, tmp_path)
    assert "stored in bfloat16 already, so pytorch-bf16 holds the same weights as pytorch" in output.warnings[0]


def test_weights_that_became_zero_are_counted_and_told(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model", dtype="float32")
    helpers.rewrite(source / "model.safetensors", lambda table: table["model.embed_tokens.weight"].mul_(1e-7))
    _, output = make("pytorch-fp16", source, tmp_path / "work")
    assert output.figures["flushed_to_zero"] > 1000 and "too small for float16 and became zero" in output.warnings[0]


def test_large_models_are_written_in_files_with_an_index_as_transformers_writes_them(tmp_path: Path) -> None:
    import torch

    source = models.make_base(tmp_path / "model", dtype="float32")
    folder, _ = make("pytorch-bf16", source, tmp_path / "work", shard=1 << 16)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2 and all(path.stat().st_size < (1 << 16) + 4096 for path in files)
    loaded(source).to(torch.bfloat16).save_pretrained(tmp_path / "theirs", max_shard_size=1 << 16)
    index, theirs = (json.loads((place / "model.safetensors.index.json").read_text()) for place in (folder, tmp_path / "theirs"))
    assert index["metadata"] == theirs["metadata"] and index["weight_map"].keys() == theirs["weight_map"].keys()
    whole, parts = loaded(source).to(torch.bfloat16).state_dict(), loaded(folder).state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize(("auto", "kind"), [("AutoModelForSeq2SeqLM", "t5"), ("AutoModelForSequenceClassification", "bert")])
def test_encoder_decoders_and_encoders_are_loaded_too(auto: str, kind: str, tmp_path: Path) -> None:
    import torch

    source = zoo.make_seq2seq_base(tmp_path / "m", kind) if kind == "t5" else zoo.make_encoder_base(tmp_path / "m", auto, kind)
    folder, _ = make("pytorch-bf16", source, tmp_path / "work")
    assert loaded(folder, auto).dtype == torch.bfloat16


MEMORY = """
import resource, sys
from pathlib import Path
import torch
from tests.pytorch.forms import make
make("pytorch-bf16", Path(sys.argv[1]), Path(sys.argv[3]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
make("pytorch-bf16", Path(sys.argv[2]), Path(sys.argv[4]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for name, rows in (("small", 1 << 10), ("large", 1 << 17)):
        models.make_base(tmp_path / name, dtype="float32")
        save_file({"model.embed_tokens.weight": torch.randn(rows, 1024)}, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
    arguments = [str(tmp_path / name) for name in ("small", "large", "work-small", "work-large")]
    done = subprocess.run([sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000, f"{done.stdout} KiB more for a model of 512 MiB"
