"""Full fine-tunes in the dtype and the files that `[merge]` asks for: rounded once, index and configuration true, nothing else changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.options import MergeOptions
from handlers.child.progress import StageOutput
from handlers.merge import stage
from handlers.merge.api import MergeReport
from handlers.merge.full_finetune import take_over
from handlers.models.folder import INDEX, ModelFolder
from tests import models
from tests.merge import helpers

IDS = torch.arange(2, 34)[None]


@pytest.fixture(scope="module")
def base32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in fp32, as a full fine-tune leaves it. Read only."""
    return models.make_base(tmp_path_factory.mktemp("full") / "fp32", dtype="float32")


def run(folder: Path, pin: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The merge stage on a full fine-tune with these keys of `[merge]`; gives the folder that it wrote."""
    context = helpers.context(folder, pin, None, method="full")
    work = context.work.model_copy(update={"merge": MergeOptions.model_validate(options)})
    before = helpers.snapshot(pin)
    output = stage.run(context.model_copy(update={"work": work}), helpers.reporter())
    assert helpers.snapshot(pin) == before
    return Path(context.staging), output


def synthetic(folder: Path, table: dict[str, Any], **config: Any) -> Path:
    """A folder that holds these tensors and calls itself a model."""
    folder.mkdir()
    save_file(table, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def taken(checkpoint: Path, output: Path, **options: Any) -> MergeReport:
    output.mkdir()
    return take_over(checkpoint, output, *helpers.settings(**options))


def config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same_bits(one: Any, other: Any) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    )


@pytest.mark.parametrize(
    ("stored", "wanted"), [("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32"), ("bfloat16", "float16")]
)
def test_every_weight_is_what_torch_s_own_conversion_gives(stored: str, wanted: str, base32: Path, pico_base: Path, tmp_path: Path) -> None:
    pin = {"float32": base32, "bfloat16": pico_base}[stored]
    folder, output = run(tmp_path / "job", pin, dtype=wanted)
    before, after = helpers.stored(pin), helpers.stored(folder)
    assert before.keys() == after.keys()
    assert all(same_bits(after[name], tensor.to(getattr(torch, wanted))) for name, tensor in before.items())
    assert names(folder) == ["config.json", "generation_config.json", "model.safetensors"]
    assert config(folder) == {**config(pin), "dtype": wanted}
    assert (output.strategy, output.warnings, output.fallbacks) == ("streaming", [], [])
    figures = output.figures
    assert (figures["base_dtype"], figures["output_dtype"], figures["method"]) == (stored, wanted, "full")
    assert (figures["recast_tensors"], figures["weight_files"], figures["changed_parameters"]) == (len(before), 1, 0)
    assert figures["base_bytes"] == ModelFolder(pin).stored_bytes and len(figures["base_digest"]) == 64


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_the_model_says_the_same_as_far_as_the_dtype_can_tell(dtype: str, bound: float, base32: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder, _ = run(tmp_path / "job", base32, dtype=dtype, max_shard_size=1 << 16)
    rounded = AutoModelForCausalLM.from_pretrained(base32, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.to(getattr(torch, dtype)))
        expected = rounded(input_ids=IDS).logits
    got, exact = helpers.logits(folder, IDS), helpers.logits(base32, IDS)
    assert torch.equal(got, expected)
    assert 0 < (got - exact).abs().max() < 16 * bound * exact.std()


def test_values_at_the_edges_of_a_dtype_are_rounded_as_torch_rounds_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    edges = torch.tensor(
        [0.0, -0.0, 1 + 2**-8, 1 + 2**-9, 1 + 3 * 2**-9, 6e-8, 3e-8, -1e-40, 65504.0, 65519.0, 2**-14, float("inf"), float("-inf")]
    )
    tall, wide = torch.randn(9000, 1024).mul_(1e-3), torch.randn(3, 1 << 19)
    table = {
        "edges": edges,
        "tall": tall,
        "wide": wide,
        "scalar": torch.tensor(1 / 3),
        "none": torch.empty(0, 4),
        "twice": torch.randn(5, 7, 3).double(),
    }
    source = synthetic(tmp_path / "source", table)
    for dtype in ("bfloat16", "float16"):
        taken(source, tmp_path / dtype, dtype=dtype, threads=2, verify="full")
        written = helpers.stored(tmp_path / dtype)
        assert all(same_bits(written[name], tensor.to(getattr(torch, dtype))) for name, tensor in table.items())


def test_what_is_no_floating_point_number_keeps_its_dtype(tmp_path: Path) -> None:
    kinds = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn)
    table = {f"{kind}".removeprefix("torch."): torch.arange(6).to(kind) for kind in kinds}
    source = synthetic(tmp_path / "source", {**table, "weight": torch.randn(8, 4)})
    report = taken(source, tmp_path / "out", dtype="bfloat16")
    written = helpers.stored(tmp_path / "out")
    assert all(same_bits(written[name], tensor) for name, tensor in table.items())
    assert (written["weight"].dtype, report.figures.recast_tensors) == (torch.bfloat16, 1)


@pytest.mark.parametrize("dtype", ["base", "float32"])
def test_files_are_cut_to_the_size_that_is_asked_for_and_the_index_is_true(dtype: str, pico_base: Path, tmp_path: Path) -> None:
    limit = 1 << 16
    folder, output = run(tmp_path / "job", pico_base, dtype=dtype, max_shard_size=limit)
    model = ModelFolder(folder)
    files, found = model.files, model.headers
    assert len(files.names) > 3 and files.index == INDEX
    assert output.figures["weight_files"] == len(files.names)
    assert list(files.names) == [f"model-{number:05}-of-{len(files.names):05}.safetensors" for number in range(1, len(files.names) + 1)]
    assert names(folder) == sorted(["config.json", "generation_config.json", INDEX, *files.names])
    for name in files.names:
        held = [info for info in found.values() if info.file == name]
        assert sum(info.size for info in held) <= limit or len(held) == 1
    index = json.loads((folder / INDEX).read_text())
    assert index["weight_map"] == {name: info.file for name, info in sorted(found.items())}
    assert index["metadata"]["total_size"] == model.stored_bytes
    before, after = helpers.stored(pico_base), helpers.stored(folder)
    wanted = torch.float32 if dtype == "float32" else torch.bfloat16
    assert before.keys() == after.keys() and all(same_bits(after[name], tensor.to(wanted)) for name, tensor in before.items())
    assert torch.equal(helpers.logits(folder, IDS), helpers.logits(pico_base, IDS))
    if dtype == "base":
        assert (folder / "config.json").read_bytes() == (pico_base / "config.json").read_bytes()
        assert output.figures["recast_tensors"] == 0


def test_many_files_become_one_where_they_fit_into_it(pico_base: Path, tmp_path: Path) -> None:
    many, _ = run(tmp_path / "many", pico_base, max_shard_size=1 << 16)
    one, output = run(tmp_path / "one", many, max_shard_size=1 << 30)
    assert names(one) == ["config.json", "generation_config.json", "model.safetensors"]
    assert output.figures["weight_files"] == 1
    before, after = helpers.stored(pico_base), helpers.stored(one)
    assert before.keys() == after.keys() and all(same_bits(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16"}, {"max_shard_size": "1GiB"}, {"dtype": "bfloat16", "max_shard_size": "1GiB"}]
)
def test_what_is_asked_for_and_there_already_costs_no_second_copy(options: dict[str, Any], pico_base: Path, tmp_path: Path) -> None:
    pin = shutil.copytree(pico_base, tmp_path / "pin")
    folder, output = run(tmp_path / "job", pin, **options)
    assert os.path.samefile(pin / "model.safetensors", folder / "model.safetensors")
    assert (output.strategy, output.figures["recast_tensors"], output.figures["weight_files"]) == ("passthrough", 0, 1)
    assert config(folder) == config(pin)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}),
        ({"dtype": "float32", "torch_dtype": "float32"}, {"dtype": "bfloat16", "torch_dtype": "bfloat16"}),
        ({"text_config": {"dtype": "float32"}}, {"text_config": {"dtype": "bfloat16"}}),
    ],
)
def test_the_configuration_names_the_dtype_of_the_weights_wherever_it_names_one(
    said: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    source = synthetic(tmp_path / "source", {"weight": torch.randn(8, 4).bfloat16()}, **said)
    assert taken(source, tmp_path / "out", dtype="bfloat16").strategy == "passthrough"
    assert config(tmp_path / "out") == expected


@pytest.mark.parametrize("table", [{"w": torch.tensor([1.0, -70000.0])}, {"w": torch.tensor([float("inf"), -70000.0, float("nan")])}])
def test_a_value_that_the_dtype_cannot_hold_is_refused_with_what_to_set(table: dict[str, Any], tmp_path: Path) -> None:
    source = synthetic(tmp_path / "source", {**table, "fine": torch.ones(3)})
    with pytest.raises(Permanent) as caught:
        taken(source, tmp_path / "out", dtype="float16")
    fault = caught.value.fault
    assert (fault.code, fault.path) == ("dtype-overflow", str(source / "model.safetensors"))
    assert "write w as float16" in fault.sentence() and "it holds -70000, and the largest float16 value is 65504" in fault.sentence()
    assert fault.remedy == 'set merge.dtype to "bfloat16" or "base"'


@pytest.mark.parametrize(
    ("value", "dtype"), [(torch.tensor([1e300], dtype=torch.float64), "float32"), (torch.tensor([3.4e38]), "bfloat16")]
)
def test_values_beyond_the_wider_dtypes_are_refused_too(value: Any, dtype: str, tmp_path: Path) -> None:
    source = synthetic(tmp_path / "source", {"w": value})
    with pytest.raises(Permanent, match=f"write w as {dtype}") as caught:
        taken(source, tmp_path / "out", dtype=dtype)
    assert caught.value.fault.code == "dtype-overflow"


def test_what_was_not_finite_before_stays_and_is_left_to_the_validation(tmp_path: Path) -> None:
    table = {"w": torch.tensor([float("nan"), float("inf"), 1.0]), "long": torch.full((70, 1024), float("nan"))}
    taken(synthetic(tmp_path / "source", table), tmp_path / "out", dtype="bfloat16", verify="full")
    written = helpers.stored(tmp_path / "out")
    assert written["w"][0].isnan() and written["w"][1] == float("inf") and written["w"][2] == 1 and written["long"].isnan().all()


def test_what_a_checkpoint_says_about_its_own_weights_is_not_refused_here(tmp_path: Path) -> None:
    """transformers makes up a missing head with a warning; that it is missing is no fault of the conversion."""
    source = synthetic(
        tmp_path / "source", {"model.embed_tokens.weight": torch.randn(8, 4)}, tie_word_embeddings=False, architectures=["Qwen3ForCausalLM"]
    )
    assert taken(source, tmp_path / "out", dtype="bfloat16").strategy == "streaming"


@pytest.mark.parametrize("how", ["sample", "full"])
def test_weights_that_were_written_wrong_are_noticed(how: str, base32: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.miscompute(monkeypatch)
    with pytest.raises(Permanent, match="should be the base's, but differs") as caught:
        run(tmp_path / "job", base32, dtype="bfloat16", verify=how)
    assert caught.value.fault.code == "merge-not-exact"
